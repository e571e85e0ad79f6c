"""``docs/results.md``: made from the records alone, so that no figure in it is ever typed."""

import os
from pathlib import Path
from typing import Any

from offspike.paper.certified import NAME, certified
from offspike.paper.conditions import conditions
from offspike.paper.publish import draw
from offspike.paper.setting import FULL, TINY, Setting
from offspike.paper.store import RECORD, Results, read_record
from offspike.paper.topics import TOPICS

__all__ = ["draw_again", "results_page"]

HEAD = """# Results

Made by `offspike reproduce results` from `reproduce/records/`; do not edit. Each section is a table or figure of the
paper ("Bridging the Gap between ANNs and SNNs by Calibrating Offset Spikes", ICLR 2023), measured with our networks:
rows marked *paper* are as printed there, rows marked *ours* were measured. What T means in each schedule:
[theory.md](theory.md#what-t-means-in-each-schedule).
"""


def results_page(records: Path, page: Path) -> str:
    """The text of ``page``: the latest record of every topic, links relative to the page."""
    sections = [_section(folder, _relative(folder, page)) for folder in _latest(records)]
    sections += [
        "\n".join([*certified(read_record(folder)), f"[Record]({_relative(folder, page)}/).\n"])
        for folder in _folders(records, NAME)[-1:]
    ]
    return "\n".join([HEAD, *sections])


def draw_again(records: Path) -> None:
    """The tables and figures in the latest record of every topic, as this version writes them."""
    for folder in _latest(records):
        record = read_record(folder)
        draw(folder, TOPICS[record["topic"]], _setting(record))


def _latest(records: Path) -> list[Path]:
    found = [folder for name in TOPICS for folder in _folders(records, name)[-1:]]
    if not found:
        raise ValueError(f"{records} holds no record of a table or figure: run offspike reproduce all first")
    return found


def _folders(records: Path, name: str) -> list[Path]:
    return sorted(folder for folder in records.glob(f"*_{name}") if (folder / RECORD).is_file())


def _setting(record: dict[str, Any]) -> Setting:
    return next(each for each in (FULL, TINY) if each.data == record["data"])


def _section(folder: Path, link: str) -> str:
    record = read_record(folder)
    shown = TOPICS[record["topic"]].show(Results(record["cells"]), _setting(record))
    parts = [f"## {record['title']}\n"]
    if shown.words:
        parts.append(f"{shown.words}\n")
    parts += [sheet.to_markdown() for sheet in shown.sheets]
    parts += [f"![{record['title']}: {name}]({link}/{name}.svg)\n" for name in shown.figures]
    return "\n".join([*parts, f"{conditions(record, shown.unused)} [Record]({link}/).\n"])


def _relative(folder: Path, page: Path) -> str:
    return Path(os.path.relpath(folder.resolve(), page.resolve().parent)).as_posix()
