"""Small pieces of accessible HTML. Text comes in plain and is escaped here, and only here."""

import base64
import io
import re
from collections.abc import Collection, Iterable, Mapping
from html import escape
from itertools import count
from typing import TYPE_CHECKING

from offspike.figures import to_svg
from offspike.figures.style import COLOURS, GREYS, INK, MUTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

__all__ = [
    "NONE", "amount", "definitions", "details", "figure", "grid", "paragraph", "percent", "picture", "section", "slug",
    "table", "with_unique_ids",
]  # fmt: skip

NONE = "–"
# The colours of figures by their CSS variables: a page in the dark shows lighter ones.
THEME = {
    **{colour.lower(): f"var(--c{index})" for index, colour in enumerate(COLOURS)},
    **{colour: f"var(--g{index})" for index, colour in enumerate(GREYS)},
    INK: "var(--ink)", MUTED: "var(--muted)", "#e3e3e3": "var(--rule)", "#ffffff": "var(--card)",
}  # fmt: skip


def percent(share: float | None) -> str:
    """A share as a number of percent."""
    return NONE if share is None else f"{100 * share:.2f}"


def amount(number: float) -> str:
    """A count or a mean count."""
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.1f}"


def paragraph(text: str, *, kind: str = "", lead: str = "") -> str:
    """A paragraph of a CSS class, with its first words in bold."""
    bold = f"<strong>{escape(lead)}</strong> " if lead else ""
    return f'<p class="{kind}">{bold}{escape(text)}</p>\n' if kind else f"<p>{bold}{escape(text)}</p>\n"


def table(
    caption: str,
    head: list[str],
    rows: list[list[str]],
    *,
    groups: Iterable[tuple[str, int]] = (),
    strong: Collection[tuple[int, int]] = (),
    heat: Mapping[tuple[int, int], float] | None = None,
) -> str:
    """A table that scrolls by itself; the first cell of a row is its heading.

    ``groups`` are headings above the columns with the number of columns each spans (one without text is left empty),
    ``strong`` the cells in bold, as (row, column), ``heat`` the shades of cells, from 0 to 1.
    """

    def cell(row: int, column: int, text: str) -> str:
        if column == 0:
            return f'<th scope="row">{escape(text)}</th>'
        shade = (heat or {}).get((row, column))
        start = "<td>" if shade is None else f'<td class="heat" style="--heat:{100 * shade:.0f}%">'
        return (
            f"{start}<strong>{escape(text)}</strong></td>" if (row, column) in strong else f"{start}{escape(text)}</td>"
        )

    above = "".join(
        f'<th scope="colgroup" colspan="{span}">{escape(text)}</th>' if text else f'<td colspan="{span}"></td>'
        for text, span in groups
    )
    columns = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    body = "".join(
        f"<tr>{''.join(cell(row, column, text) for column, text in enumerate(texts))}</tr>\n"
        for row, texts in enumerate(rows)
    )
    return (
        f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0">\n<table>\n'
        f"<caption><span>{escape(caption)}</span></caption>\n<thead>\n{f'<tr>{above}</tr>' if above else ''}"
        f"<tr>{columns}</tr>\n</thead>\n"
        f"<tbody>\n{body}</tbody>\n</table>\n</div>\n"
    )


def figure(title: str, text: str, drawing: "Figure") -> str:
    """A figure with its caption, as inline SVG that a screen reader takes for one image."""
    label = escape(f"{title} {text}".strip())
    svg = re.sub(
        r"<style.*?</style>", "", to_svg(drawing), count=1, flags=re.DOTALL
    )  # it would hold for the whole page
    svg = re.sub("|".join(THEME), lambda colour: THEME[colour[0]], svg)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return f"<figure>\n<figcaption><strong>{escape(title)}</strong> {escape(text)}</figcaption>\n{svg}</figure>\n"


def grid(figures: Iterable[str]) -> str:
    """Figures side by side where the window is wide enough."""
    body = "".join(figures)
    return f'<div class="grid">\n{body}</div>\n' if body else ""


def picture(sample: "Tensor", alt: str) -> str:
    """A sample ``[C, H, W]`` of 1 or 3 channels as an image, its contrast stretched; nothing for another shape."""
    from PIL import Image

    if sample.ndim != 3 or sample.shape[0] not in (1, 3):
        return ""
    low, high = sample.min(), sample.max()
    pixels = ((sample - low) / (high - low).clamp(min=1e-12) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    image.thumbnail((64, 64))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    data = base64.b64encode(stream.getvalue()).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{escape(alt)}" width="64" height="64">'


def details(summary: str, body: str) -> str:
    """What is folded away until it is asked for."""
    return f"<details>\n<summary>{escape(summary)}</summary>\n{body}</details>\n"


def definitions(items: dict[str, str]) -> str:
    """Names and what they stand for."""
    body = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>\n" for name, value in items.items())
    return f"<dl>\n{body}</dl>\n" if body else ""


def section(title: str, body: str) -> str:
    """A section with a heading that can be linked to; ``body`` is HTML."""
    name = slug(title)
    return f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escape(title)}</h2>\n{body}</section>\n'


def slug(title: str) -> str:
    """The title as an id."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def with_unique_ids(html: str) -> str:
    """The page with the ids of each SVG set apart: every figure has its own ``figure_1``."""
    numbers = count(1)

    def renumber(svg: re.Match[str]) -> str:
        prefix = f"f{next(numbers)}-"
        return re.sub(r"<[^>]+>", lambda tag: re.sub(r'( id="|href="#|url\(#)', rf"\1{prefix}", tag[0]), svg[0])

    return re.sub(r"<svg .*?</svg>", renumber, html, flags=re.DOTALL)
