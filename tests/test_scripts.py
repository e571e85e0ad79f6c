"""Scripts beside the package (records, benchmarks) take names that the package has."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = [path for folder in ("reproduce", "benchmarks") for path in sorted((ROOT / folder).glob("*.py"))]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_what_a_script_imports_exists(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "offspike":
            owner = import_module(node.module)
            for alias in node.names:
                if not hasattr(owner, alias.name):
                    import_module(f"{node.module}.{alias.name}")
