"""Small pieces of accessible HTML. Text comes in plain and is escaped here, and only here."""

import re
from collections.abc import Collection, Iterable
from html import escape
from itertools import count
from typing import TYPE_CHECKING

from offspike.figures import to_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["definitions", "figure", "grid", "paragraph", "section", "slug", "table", "with_unique_ids"]


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
) -> str:
    """A table that scrolls by itself; the first cell of a row is its heading.

    ``groups`` are headings above the columns with the number of columns each spans (one without text is left empty),
    ``strong`` the cells in bold, as (row, column).
    """

    def cell(row: int, column: int, text: str) -> str:
        if column == 0:
            return f'<th scope="row">{escape(text)}</th>'
        return f"<td><strong>{escape(text)}</strong></td>" if (row, column) in strong else f"<td>{escape(text)}</td>"

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
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return f"<figure>\n<figcaption><strong>{escape(title)}</strong> {escape(text)}</figcaption>\n{svg}</figure>\n"


def grid(figures: Iterable[str]) -> str:
    """Figures side by side where the window is wide enough."""
    body = "".join(figures)
    return f'<div class="grid">\n{body}</div>\n' if body else ""


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
