"""The paper's own numbers, as printed: ``reproduce/paper.toml``, which an installed package carries with it."""

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["printed", "read"]

FILE = "paper.toml"


@lru_cache(maxsize=1)
def read() -> dict[str, Any]:
    """Every table: ``columns`` and ``rows``, "-" where the paper prints none."""
    here = Path(__file__).parent
    for path in (here / FILE, here.parents[2] / "reproduce" / FILE):
        if path.is_file():
            return tomllib.loads(path.read_text(encoding="utf-8"))
    raise FileNotFoundError(f"{FILE} is neither in the package nor in reproduce/ of a clone: install offspike again")


def printed(table: str, **wanted: str) -> list[dict[str, Any]]:
    """Rows of a table by column; ``wanted`` picks those that have these values (``architecture="VGG-16"``)."""
    found = read()[table]
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    return [row for row in rows if all(row[column] == value for column, value in wanted.items())]
