"""Raw results on disk: one JSON file a cell, or a record of many. What is there is not measured again."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offspike import atomic
from offspike.energy import Energy
from offspike.paper.cells import Cell
from offspike.record import LayerRecord
from offspike.report import Report

__all__ = ["RECORD", "Results", "Store", "read_record"]

RECORD = "record.json"


@dataclass(frozen=True)
class Results:
    """What was measured, by the key of its cell; a cell that is missing is None."""

    raw: dict[str, dict[str, Any]] = field(default_factory=dict)

    def _of(self, cell: Cell) -> dict[str, Any] | None:
        found = self.raw.get(cell.key)
        return found if found is not None and found["cell"] == cell.to_dict() else None

    def __contains__(self, cell: Cell) -> bool:
        return self._of(cell) is not None

    def provenance(self, cell: Cell) -> dict[str, str] | None:
        """How a cell was measured: checkpoint, images, calibration, machine and more."""
        found = self._of(cell)
        return None if found is None else found["provenance"]

    def report(self, cell: Cell) -> Report | None:
        """Of an accuracy cell."""
        found = self._of(cell)
        return None if found is None else Report.from_dict(found["result"])

    def offsets(self, cell: Cell) -> dict[str, LayerRecord] | None:
        """Of an offsets cell, by layer."""
        found = self._of(cell)
        return None if found is None else {name: LayerRecord.from_dict(sums) for name, sums in found["result"].items()}

    def energies(self, cell: Cell) -> list[Energy] | None:
        """Of an energy cell, at t = 1, 2, …."""
        found = self._of(cell)
        return None if found is None else [Energy(**sums) for sums in found["result"]]

    def seconds(self, cell: Cell) -> dict[str, Any] | None:
        """Of a seconds cell: images, seconds, machine."""
        found = self._of(cell)
        return None if found is None else {**found["result"], "machine": found["provenance"]["machine"]}

    def only(self, cells: list[Cell]) -> "Results":
        """The part that belongs to these cells."""
        return Results({cell.key: self.raw[cell.key] for cell in cells if cell in self})


@dataclass(frozen=True)
class Store:
    """A folder of raw results; those that lie in ``done`` already, or in the records there, count too."""

    folder: Path
    done: tuple[Path, ...] = ()

    def read(self) -> Results:
        """Everything that is there; of a cell that was measured more than once, the latest."""
        raw: dict[str, dict[str, Any]] = {}
        for folder in (*self.done, self.folder):
            for key, found in (*_recorded(folder), *_loose(folder)):
                if key not in raw or found["provenance"]["date"] >= raw[key]["provenance"]["date"]:
                    raw[key] = found
        return Results(raw)

    def write(self, cell: Cell, result: Any, provenance: dict[str, str]) -> None:
        """Whole or not at all: a file that was cut off would stop the next run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"cell": cell.to_dict(), "result": result, "provenance": provenance}, ensure_ascii=False)
        with atomic.whole(self.folder / f"{cell.key}.json") as path:
            path.write_text(text + "\n", encoding="utf-8")


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a folder; a damaged one is refused."""
    record: dict[str, Any] = _json(folder / RECORD)
    return record


def _recorded(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The cells in records of tables and figures; other records, of training say, have none."""
    for path in sorted(folder.glob(f"*/{RECORD}")):
        for key, raw in read_record(path.parent).get("cells", {}).items():
            yield key, _whole(raw, path)


def _loose(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The cells that lie in a folder as files of their own."""
    for path in sorted(folder.glob("*.json")):
        yield path.stem, _whole(_json(path), path)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged, put it back or remove it: {error}") from error


def _whole(raw: Any, path: Path) -> dict[str, Any]:
    if not isinstance(raw, dict) or not {"cell", "result", "provenance"} <= raw.keys():
        raise ValueError(f"{path} does not hold the raw sums of a cell: parts are missing")
    return raw
