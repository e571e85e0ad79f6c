"""Sample by sample: early exit, which classes are taken for which, and where network and ANN differ."""

from html import escape

from offspike import figures as draw
from offspike.look.answers import Answers
from offspike.look.findings import Findings
from offspike.page import markup
from offspike.page.markup import percent

__all__ = ["answers", "early_exit"]

MOST_CLASSES = 20  # a larger table cannot be read
LOSSES = (0.0, 0.005, 0.01)


def early_exit(findings: Findings) -> str:
    """Mean T and accuracy when an image stops as soon as its answer is clear."""
    exits = findings.exits
    if not exits:
        return ""
    rows = []
    for name, found in exits.items():
        picks = [found.cheapest(loss) for loss in LOSSES]
        cells = [(f"{found.mean_steps[k]:.2f}", percent(found.accuracy[k]), f"{found.margins[k]:.3g}") for k in picks]
        rows.append([name, percent(found.accuracy[-1]), *(cell for three in cells for cell in three)])
    head = ["Method", f"T = {findings.most_steps}", *("mean T", "accuracy", "margin") * len(LOSSES)]
    groups = [("", 2), *((f"at most {100 * loss:.1f} points lost" if loss else "nothing lost", 3) for loss in LOSSES)]
    text = (
        "An image stops at the first t where its largest mean logit leads the second by more than a margin. Margins "
        "were read off these same samples: choose yours on other data. Where layers calibrate one after the other, "
        "each has seen ρ steps whatever T is; stopping early saves readout steps, and work beyond ρ only."
    )
    figure = markup.figure("Accuracy against mean T.", "Each marker is a margin.", draw.early_exit(exits))
    table = markup.table("Early exit: the smallest mean T for a given loss of accuracy (%).", head, rows, groups=groups)
    name = findings.focus(exits)
    found = exits[name]
    columns = zip(found.margins, found.mean_steps, found.accuracy, strict=True)
    every = [[f"{margin:.4g}", f"{mean:.2f}", percent(right)] for margin, mean, right in columns]
    margins = markup.table(f"{name}: mean T and accuracy (%) at each margin.", ["Margin", "mean T", "accuracy"], every)
    return markup.paragraph(text) + markup.grid([figure]) + table + markup.details(f"Every margin of {name}", margins)


def answers(findings: Findings) -> str:
    """Confusions of one method, and the samples on which it differs from the ANN."""
    if not findings.answers:
        return ""
    t = findings.chosen
    name = findings.focus(findings.answers)
    seen = findings.answers[name]
    return _confusion(findings, name, seen, t) + _differences(findings, name, seen)


def _confusion(findings: Findings, name: str, seen: Answers, t: int) -> str:
    counts = seen.confusion(t)
    names = [findings.class_name(k) for k in range(seen.classes)]
    wrong = counts.clone().fill_diagonal_(0)
    pairs = wrong.flatten().argsort(descending=True, stable=True)[:10].tolist()
    confused = [divmod(pair, seen.classes) for pair in pairs if wrong.flatten()[pair]]
    worst = [[names[i], names[j], str(int(counts[i, j]))] for i, j in confused]
    text = f"{name} at T = {t}: {int(wrong.sum()):,} of {len(seen.labels):,} samples are answered wrongly."
    table = markup.table("The most frequent confusions.", ["Truth", "Answered", "Samples"], worst) if worst else ""
    if seen.classes <= MOST_CLASSES:
        caption = f"Confusion matrix of {name} at T = {t}: a row is the truth, a column the answer."
        rows = [[names[i], *(str(int(n)) for n in row)] for i, row in enumerate(counts)]
        most = counts.max(1).values.clamp(min=1)
        heat = {(i, j + 1): float(n / most[i]) for i, row in enumerate(counts) for j, n in enumerate(row) if n}
        table = markup.table(caption, ["Truth", *names], rows, heat=heat) + table
    return markup.paragraph(text) + table


def _differences(findings: Findings, name: str, seen: Answers) -> str:
    if seen.expected is None:
        return ""
    apart = seen.differing()
    if not apart:
        text = (
            f"{name} and the ANN give the same answer to all {len(seen.labels):,} samples at every T <= {seen.until}."
        )
        return "<h3>Where network and ANN differ</h3>\n" + markup.paragraph(text)
    items = []
    for place, number in apart:
        if number in seen.pictures:
            items.append(_one(findings, seen, place, number))
    shown = f" The first {len(items)} are shown." if len(items) < len(apart) else ""
    text = f"{name} and the ANN differ on {len(apart):,} of {len(seen.labels):,} samples at some T <= {seen.until}."
    return (
        "<h3>Where network and ANN differ</h3>\n"
        + markup.paragraph(text + shown)
        + f'<ul class="images">\n{"".join(items)}</ul>\n'
    )


def _one(findings: Findings, seen: Answers, place: int, number: int) -> str:
    assert seen.expected is not None
    truth, ann = (findings.class_name(int(x[place])) for x in (seen.labels, seen.expected))
    said: dict[str, list[str]] = {}
    for t in range(1, seen.until + 1):
        said.setdefault(findings.class_name(int(seen.at(t)[place])), []).append(str(t))
    by_step = "; ".join(f"{answer} at T = {', '.join(steps)}" for answer, steps in said.items() if answer != ann)
    image = markup.picture(seen.pictures[number], f"Sample {number}")
    lines = (f"sample {number}: {truth}", f"ANN: {ann}", f"spikes: {by_step}")
    return f"<li>{image}{''.join(f'<span>{escape(line)}</span>' for line in lines)}</li>\n"
