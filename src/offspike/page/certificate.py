"""What was proved about the network, rendered from the plain dictionary of a certificate."""

from collections.abc import Mapping
from typing import Any

from offspike.page import markup

__all__ = ["certificate"]


def certificate(found: Mapping[str, Any] | None) -> str:
    """The verdict, what the proof lacks, tables of ``layers`` and ``sums``, and every other plain value.

    ``proved`` and ``verdict`` stand at the top, or under ``derived``.
    """
    if not found:
        return ""
    known = {**found, **found.get("derived", {})}
    verdict = str(known.get("verdict") or ("proved" if known.get("proved") else "not proved"))
    lacking = "".join(markup.paragraph(str(reason), lead="The proof lacks:") for reason in known.get("reasons", ()))
    facts = {name.replace("_", " "): _say(value) for name, value in known.items() if _plain(value)}
    facts = {name: value for name, value in facts.items() if name not in ("proved", "verdict", "format", "reasons")}
    tables = _table("Layer by layer.", "Layer", known.get("layers")) + _table("Sums.", "Layer", known.get("sums"))
    return (
        markup.paragraph(verdict[0].upper() + verdict[1:] + ".", kind="note")
        + lacking
        + tables
        + markup.definitions(facts)
    )


def _table(caption: str, kind: str, rows: Mapping[str, Mapping[str, Any]] | None) -> str:
    """A row for each name; what is nested is laid out flat, and of a judgement only the share that is equal."""
    cells = {name: _flat(row) for name, row in (rows or {}).items()}
    keys = list(dict.fromkeys(key for row in cells.values() for key in row))
    if not keys:
        return ""
    body = [[name, *(_say(row.get(key)) for key in keys)] for name, row in cells.items()]
    return markup.table(caption, [kind, *(key.replace("_", " ") for key in keys)], body)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping) and "ratio" in value:
            flat[f"{key} equal, %"] = markup.percent(value["ratio"])
        elif isinstance(value, Mapping):
            flat |= {inner: part for inner, part in value.items() if _plain(part)}
        elif _plain(value):
            flat[key] = value
    return flat


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(part, str) for part in value) and bool(value)
    return isinstance(value, str | int | float | bool)


def _say(value: Any) -> str:
    if value is None:
        return markup.NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
