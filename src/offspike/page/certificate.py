"""What was proved about the network, rendered from the plain dictionary of a certificate."""

from collections.abc import Mapping
from typing import Any

from offspike.page import markup

__all__ = ["certificate"]


def certificate(found: Mapping[str, Any] | None) -> str:
    """``proved`` as a sentence, ``layers`` as a table, every other plain value as a definition."""
    if not found:
        return ""
    verdict = "Proved: the spiking network answers as the ANN does." if found.get("proved") else "Not proved."
    layers = found.get("layers") or {}
    rows = layers if isinstance(layers, Mapping) else {str(row.get("name", k)): row for k, row in enumerate(layers)}
    keys = list(dict.fromkeys(key for row in rows.values() for key, value in row.items() if _plain(value)))
    keys = [key for key in keys if key != "name"]
    table = ""
    if rows and keys:
        cells = [[name, *(_say(row.get(key)) for key in keys)] for name, row in rows.items()]
        table = markup.table("Layer by layer.", ["Layer", *(key.replace("_", " ") for key in keys)], cells)
    facts = {k.replace("_", " "): _say(v) for k, v in found.items() if k not in ("proved", "layers") and _plain(v)}
    return markup.paragraph(verdict, kind="note") + markup.definitions(facts) + table


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _say(value: Any) -> str:
    if value is None:
        return markup.NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
