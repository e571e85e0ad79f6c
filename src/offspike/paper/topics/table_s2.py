"""Table S2: for each layer, how often its input and output equal the ANN's, and its output if the input is right."""

from offspike.paper.cells import Cell
from offspike.paper.numbers import read
from offspike.paper.setting import TITLES, Setting
from offspike.paper.sheets import Sheet, percent
from offspike.paper.store import Results
from offspike.paper.topic import Shown, Topic
from offspike.paper.topics.iterations import doubles, line_up
from offspike.record import LayerRecord


def cells(setting: Setting) -> list[Cell]:
    """COS iterated, and exact, in both precisions."""
    return _single(setting) + doubles(setting)


def show(results: Results, setting: Setting) -> Shown:
    """A table a network; layers are columns, as in the paper."""
    sheets = tuple(sheet for net in setting.nets if (sheet := _sheet(results, setting, net)) is not None)
    words = (
        "Input, same bits: the mean current is exactly the ANN's pre-activation; input, within 0.001 spike: rounding "
        "is forgiven (the paper does not say how it compares). Output, own input: against the ANN's activation of the "
        "input that the layer really got."
    )
    return Shown(sheets, words=words)


def _single(setting: Setting) -> list[Cell]:
    return [setting.offsets(net, line_up(setting)[name]) for net in setting.nets for name in ("COS ×4", "exact")]


def _sheet(results: Results, setting: Setting, net: str) -> Sheet | None:
    rows, width = [], 0
    for name in ("COS ×4", "exact"):
        for precision, double in (("float32", False), ("float64", True)):
            layers = results.offsets(setting.offsets(net, line_up(setting)[name], double=double))
            if layers is not None:
                width = len(layers)
                rows += [(f"{name}, {precision}", *row) for row in _four(list(layers.values()))]
    if not rows:
        return None
    if TITLES[net] == "VGG-16":
        rows = [("paper", row[0], *(f"{value:.2f}" for value in row[1:])) for row in read()["table-s2"]["rows"]] + rows
    columns = ("source", "share (%)", *(f"L{index}" for index in range(1, width + 1)))
    title = f"{TITLES[net]} on {setting.data}, T = ρ = L = {setting.levels}"
    return Sheet(title, columns, tuple(rows), text=2, name=net)


def _four(layers: list[LayerRecord]) -> list[tuple[str, ...]]:
    return [
        ("input, same bits", *(percent(layer.inputs.ratio) for layer in layers)),
        ("input, within 0.001 spike", *(percent(layer.near.ratio) for layer in layers)),
        ("output", *(percent(layer.unconstrained.ratio) for layer in layers)),
        ("output, own input", *(percent(layer.constrained.ratio) for layer in layers)),
    ]


TOPIC = Topic("table-s2", "Table S2: input and output ratio of each layer", cells, show)
