"""A record: what was measured, how, and the tables and figures made of it, in a folder of its own."""

import json
from datetime import UTC, datetime
from pathlib import Path

from offspike import atomic
from offspike.experiment import provenance
from offspike.paper.conditions import conditions
from offspike.paper.measure import commit
from offspike.paper.setting import Setting
from offspike.paper.store import RECORD, Results, read_record
from offspike.paper.topic import Shown, Topic

__all__ = ["NothingMeasured", "draw", "publish"]

HOW = ("command", "commit", "machine", "torch", "precision", "images")


class NothingMeasured(ValueError):
    """A topic of which no cell has been measured."""


def publish(topic: Topic, results: Results, setting: Setting, records: Path) -> Path:
    """Write ``records/<date>_<topic>/``: record.json with the raw sums, tables as .md .csv .tex, figures .svg .png."""
    needed = {cell.key: cell for cell in topic.cells(setting)}
    own = results.only(list(needed.values()))
    if needed and not own.raw:
        raise NothingMeasured(
            f"nothing was measured for {topic.name}: measure it first, or name the folder with --from"
        )
    folder = records / f"{datetime.now(UTC):%Y-%m-%d}_{topic.name}"
    folder.mkdir(parents=True, exist_ok=True)
    _write_record(folder / RECORD, topic, own, setting, sorted(needed.keys() - own.raw.keys()))
    draw(folder, topic, setting)
    return folder


def draw(folder: Path, topic: Topic, setting: Setting) -> None:
    """The tables and figures of a record, from what it holds."""
    record = read_record(folder)
    shown = topic.show(Results(record["cells"]), setting)
    _write_sheets(folder, topic, shown, conditions(record, shown.unused))
    _write_figures(folder, shown)


def _write_record(path: Path, topic: Topic, own: Results, setting: Setting, missing: list[str]) -> None:
    """Its header, then a cell a line: long, but a change shows where it is."""
    runs = {json.dumps({key: raw["provenance"].get(key) for key in HOW}, sort_keys=True) for raw in own.raw.values()}
    head = {
        "topic": topic.name,
        "title": topic.title,
        "data": setting.data,
        "shown": {key: provenance()[key] for key in ("command", "date", "offspike")} | {"commit": commit()},
        "measured": [json.loads(run) for run in sorted(runs)],
        "seeds": {"random v(0)": list(setting.seeds), "everything else": "no chance involved"},
        "missing": missing,
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(raw, ensure_ascii=False)}" for key, raw in sorted(own.raw.items())]
    text = json.dumps(head, indent=1, ensure_ascii=False)[:-2] + ',\n "cells": {\n' + ",\n".join(lines) + "\n }\n}\n"
    with atomic.whole(path) as beside:  # it may be the only copy of its cells
        beside.write_text(text, encoding="utf-8")


def _write_sheets(folder: Path, topic: Topic, shown: Shown, measured: str) -> None:
    """A table that is read alone says how it came about, too."""
    said = "".join(f"\n{words}\n" for words in (shown.words, measured) if words)
    for sheet in shown.sheets:
        stem = folder / (f"{topic.name}-{sheet.name}" if sheet.name else topic.name)
        for suffix, text in ((".md", sheet.to_markdown() + said), (".csv", sheet.to_csv()), (".tex", sheet.to_latex())):
            stem.with_suffix(suffix).write_text(text, encoding="utf-8")


def _write_figures(folder: Path, shown: Shown) -> None:
    from offspike.figures import save

    for name, draw in shown.figures.items():
        figure = draw()
        for suffix in (".svg", ".png"):
            save(figure, folder / f"{name}{suffix}")
