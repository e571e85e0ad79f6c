"""The command ``reproduce``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from offspike.cli.shared import Calibration, Root, check_writable, console, place, progress_bars

WORK = Path("runs")  # ignored by git
CLONE = Path("reproduce/records")

Names = Annotated[
    list[str], typer.Argument(help="table-1 … table-s4, times, figure-1 … figure-6, causal, cost; or all.")
]
Tiny = Annotated[bool, typer.Option("--tiny", help="Small networks on digits, trained on the spot.")]
Raw = Annotated[Path | None, typer.Option("--from", help="Raw results of reproduce/measure.py; nothing is measured.")]
Records = Annotated[
    Path | None,
    typer.Option(
        help="Where records are and go. Default: reproduce/records in a clone; with --tiny or --limit below runs/."
    ),
]
Dataset = Annotated[
    str | None,
    typer.Option(help="cifar10, or tiny-imagenet-100 (Table 1), then --root holds train/<class>/… and val/<class>/…."),
]
Models = Annotated[Path | None, typer.Option(help="A folder of checkpoints, looked through before the packaged ones.")]
Net = Annotated[list[str] | None, typer.Option(help="Only this network (vgg16, resnet18, resnet20); may be repeated.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda. Default: a GPU where there is one.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Images at a time for T <= 32.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first test images.")]
Page = Annotated[Path, typer.Option(help="With the name results: the page to write.")]


def reproduce(
    names: Names,
    tiny: Tiny = False,
    raw: Raw = None,
    records: Records = None,
    root: Root = Path("data"),
    dataset: Dataset = None,
    models: Models = None,
    net: Net = None,
    device: Device = None,
    batch: Batch = None,
    limit: Limit = None,
    calibration: Calibration = 1000,
    page: Page = Path("docs/results.md"),
) -> None:
    """Regenerate tables and figures of the paper, our figures beside the paper's, with a record of each.

    What the records hold, or has been measured before and lies below runs/, is not measured again as long as network,
    images and calibration are the same; to measure it anew, remove runs/ and name an empty folder with --records. One
    run measures one data set; Table 1 shows two, so run it once more with --dataset. The name results writes
    docs/results.md from the records, and draws their tables and figures again.

    Example: offspike reproduce all --tiny
    """
    from offspike.paper.bench import Bench
    from offspike.paper.publish import NothingMeasured, publish
    from offspike.paper.setting import FULL, TINY
    from offspike.paper.store import Store

    whole = limit is None and not tiny
    work = WORK / ("reproduce" if whole else "reproduce-tiny" if tiny else "reproduce-limited")
    records = records or (CLONE if CLONE.is_dir() and whole else work / "records")
    if names == ["results"]:
        return _write_page(records, page)
    topics = _topics(names)
    setting = TINY if tiny else FULL
    if raw is not None and not any(raw.glob("*.json")):
        raise ValueError(f"{raw} is not a folder of raw results")
    store = Store(raw or work / "raw", (records,))
    if raw is None:
        cells = _only(net, [cell for topic in topics for cell in topic.cells(setting)])
        where = place(device)
        size = batch or (500 if where.type == "cuda" else 200 if tiny else 50)
        bench = Bench(
            _data(dataset, setting, cells), root, work / "models" if tiny else models, str(where), size, limit,
            setting.images_for_energy, calibration,
        )  # fmt: skip
        _measure(cells, bench, store, tiny=tiny)
    results = store.read()
    for topic in topics:
        try:
            console.print(f"{topic.name}: {publish(topic, results, setting, records)}")
        except NothingMeasured as error:
            if "all" not in names:
                raise
            console.print(f"{topic.name}: left out, {error}", style="dim")


def _topics(names: list[str]) -> list[Any]:
    from offspike.paper.topics import TOPICS

    unknown = [name for name in names if name not in TOPICS and name != "all"]
    if unknown:
        raise ValueError(f"there is no {unknown[0]!r}; there are {', '.join(TOPICS)}, all, and results")
    return [TOPICS[name] for name in (TOPICS if "all" in names else dict.fromkeys(names))]


def _only(nets: list[str] | None, cells: list[Any]) -> list[Any]:
    """The cells of these networks; of all if none is named."""
    known = dict.fromkeys(cell.network.split("-")[0] for cell in cells)
    for name in nets or []:
        if name not in known:
            raise ValueError(f"there is no network {name!r} here; there are {', '.join(known) or 'none'}")
    return [cell for cell in cells if not nets or cell.network.split("-")[0] in nets]


def _data(name: str | None, setting: Any, cells: list[Any]) -> str:
    """The data set to measure: the one that is named, if cells want it, or the setting's own."""
    known = dict.fromkeys(cell.data for cell in cells)
    if name is not None and name not in known:
        raise ValueError(f"there is no data set {name!r} here; there are {', '.join(known) or 'none'}")
    return name or str(setting.data)


def _write_page(records: Path, page: Path) -> None:
    from offspike.paper.results import draw_again, results_page

    text = results_page(records, page)
    check_writable(page)
    page.write_text(text, encoding="utf-8")
    draw_again(records)
    console.print(f"results: {page}")


def _measure(cells: list[Any], bench: Any, store: Any, *, tiny: bool) -> None:
    from offspike.paper.measure import measure
    from offspike.paper.tiny import train_small

    if tiny:
        train_small([cell.network for cell in cells], bench.models)
    with progress_bars() as bar:
        outcome = measure(cells, bench, store, watch=bar)
    if outcome.missing and not outcome.measured and not outcome.found:
        bench.path(next(iter(outcome.missing)))  # says what to do about it
    console.print(outcome.sentence())
