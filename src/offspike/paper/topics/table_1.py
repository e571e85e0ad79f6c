"""Table 1: conversion methods against T. Ours stand beside the paper's CIFAR-100 and ImageNet."""

from dataclasses import replace

from offspike.paper.cells import Cell
from offspike.paper.numbers import read
from offspike.paper.setting import FULL, HARDER, NARROW, TITLES, Setting
from offspike.paper.sheets import MISSING, Sheet, percent
from offspike.paper.store import Results
from offspike.paper.topic import Shown, Topic, accuracies, steps_columns


def cells(setting: Setting) -> list[Cell]:
    """QCFS, COS and exact on every data set at hand."""
    return [
        each.accuracy(net, method, stage=1 if each is setting else 4)
        for each in _settings(setting)
        for net in each.nets
        for method in each.core().values()
    ]


def show(results: Results, setting: Setting) -> Shown:
    """The paper's rows, then ours."""
    rows: list[tuple[str, ...]] = []
    found = read()["table-1"]
    for row in found["rows"]:
        values = [f"{value:.2f}" if isinstance(value, float) else MISSING for value in (row[2], *row[4:])]
        rows.append((row[0], row[3], "COS" if row[1] == "Ours" else row[1], "paper", *values))
    for each in _settings(setting):
        for net in each.nets:
            for name, method in each.core().items():
                report = results.report(each.accuracy(net, method))
                if report is not None:
                    ann = percent(report.reference_accuracy)
                    rows.append((each.data, TITLES[net], name, "ours", ann, *accuracies(report, FULL.readouts)))
    columns = ("data set", "network", "method", "source", "ANN", *steps_columns(FULL.readouts))
    words = "The data sets differ, so the rows show how much is lost against the ANN, not who has the better network. "
    words += "Ours: ρ = L, which is 4, and 8 for ResNet-20 on tiny-imagenet-100."
    return Shown((Sheet("Accuracy (%) of conversion methods", columns, tuple(rows), text=4),), words=words)


def _settings(setting: Setting) -> tuple[Setting, ...]:
    """The setting, and beside CIFAR-10 those of the harder data set, with the same choice of networks."""
    if setting.data != FULL.data:
        return (setting,)
    others = [replace(each, nets=tuple(net for net in each.nets if net in setting.nets)) for each in (HARDER, NARROW)]
    return (setting, *others)


TOPIC = Topic("table-1", "Table 1: conversion methods against T", cells, show)
