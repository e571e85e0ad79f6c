"""Raw results on disk: one JSON file a cell. What is there is not measured again."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offspike import atomic
from offspike.energy import Energy
from offspike.paper.cells import Cell
from offspike.record import LayerRecord
from offspike.report import Report

__all__ = ["Results", "Store"]


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
    """A folder of raw results; those that lie in ``done`` already count too."""

    folder: Path
    done: tuple[Path, ...] = ()

    def read(self) -> Results:
        """Everything that is there."""
        raw = {}
        for folder in (*self.done, self.folder):
            for path in sorted(folder.glob("*.json")):
                try:
                    raw[path.stem] = json.loads(path.read_text())
                    if not {"cell", "result", "provenance"} <= raw[path.stem].keys():
                        raise ValueError("parts are missing")
                except (ValueError, AttributeError) as error:
                    raise ValueError(f"{path} does not hold the raw sums of a cell: {error}") from error
        return Results(raw)

    def write(self, cell: Cell, result: Any, provenance: dict[str, str]) -> None:
        """Whole or not at all: a file that was cut off would stop the next run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"cell": cell.to_dict(), "result": result, "provenance": provenance}, ensure_ascii=False)
        with atomic.whole(self.folder / f"{cell.key}.json") as path:
            path.write_text(text + "\n", encoding="utf-8")
