"""Imports run one way: a file may import from its own row or from rows above it."""

import ast
from pathlib import Path

import offspike

ROWS = """
equations clock distributed atomic preprocess storage catalogue fit timing arguments hooks
ops
activations
neurons initial leaves thresholds corrections
fused
methods graph
capture layers pooling
inspection folding arithmetic
fast
schedules inputs outputs
network latency datasets fanout
surgery report checkpoint energy exits
prepare convert record pool_errors exchange
evaluate zoo training train fixed
figures
experiment doctor rivals bench
look
page paper
demo
cli
__main__
"""
RANK = {name: rank for rank, row in enumerate(ROWS.strip().splitlines()) for name in row.split()}


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("offspike"):
            yield from [node.module.split(".")[1]] if "." in node.module else [a.name for a in node.names]


def test_imports_run_one_way():
    root = Path(offspike.__file__).parent
    for path in root.rglob("*.py"):
        name = path.relative_to(root).parts[0].removesuffix(".py")
        if name != "__init__":
            for other in imported(ast.parse(path.read_text())):
                if other in RANK:
                    assert RANK[other] <= RANK[name], f"{name} imports {other}, which stands below it"


def test_every_file_has_its_row():
    root = Path(offspike.__file__).parent
    names = {p.relative_to(root).parts[0].removesuffix(".py") for p in root.rglob("*.py")} - {"__init__"}
    assert names == set(RANK)
