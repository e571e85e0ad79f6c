"""A table as Markdown, CSV and LaTeX. Cells are text; numbers are written once, by whoever knows their unit."""

import csv
import io
from dataclasses import dataclass, replace

__all__ = ["MISSING", "Sheet", "decimal", "percent"]

MISSING = "–"
# What LaTeX would take for a command, what its usual fonts show as something else (< as ¡), and what they lack.
LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "%&_#${}"},
        **{sign: f"${sign}$" for sign in "<>|"},
        "θ": "$\\theta$", "ρ": "$\\rho$", "ψ": "$\\psi$", "×": "$\\times$", "–": "--", "−": "$-$", "←": "$\\leftarrow$",
        "µ": "$\\mu$", "≥": "$\\ge$", "≤": "$\\le$", "±": "$\\pm$", "²": "$^2$", "…": "\\dots{}", "·": "$\\cdot$",
        "≠": "$\\ne$",        "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Sheet:
    """A titled table; ``text`` columns come first and are set left, the others right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text: int = 1
    name: str = ""  # of its files; empty: the topic's

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: a row of {len(row)} cells under {len(self.columns)} columns: {row}")

    def trimmed(self) -> "Sheet":
        """Without columns that hold no value at all."""
        kept = [i for i in range(len(self.columns)) if i < self.text or any(row[i] != MISSING for row in self.rows)]
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[i] for i in kept), rows=rows)

    def to_markdown(self) -> str:
        """With the title in bold above it."""
        rule = [" --- " if index < self.text else " ---: " for index in range(len(self.columns))]
        lines = [self.columns, *self.rows]
        text = [f"| {' | '.join(cell.replace('|', '∣') for cell in line)} |" for line in lines]
        return "\n".join([f"**{self.title}**", "", text[0], f"|{'|'.join(rule)}|", *text[1:]]) + "\n"

    def to_csv(self) -> str:
        """Comma-separated; an empty cell where there is no value."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([["" if cell == MISSING else cell for cell in row] for row in self.rows])
        return out.getvalue()

    def to_latex(self) -> str:
        """A ``table`` with booktabs rules, in ASCII: any LaTeX sets it."""
        layout = "l" * self.text + "r" * (len(self.columns) - self.text)
        lines = [" & ".join(cell.translate(LATEX) for cell in line) + r" \\" for line in (self.columns, *self.rows)]
        body = "\n".join(["  \\toprule", f"  {lines[0]}", "  \\midrule", *(f"  {line}" for line in lines[1:])])
        return (
            "% needs \\usepackage{booktabs}\n\\begin{table}\n  \\centering\n"
            f"  \\caption{{{self.title.translate(LATEX)}}}\n"
            f"  \\begin{{tabular}}{{{layout}}}\n{body}\n  \\bottomrule\n  \\end{{tabular}}\n\\end{{table}}\n"
        )


def percent(share: float | None, digits: int = 2) -> str:
    """0.9434 as "94.34"; what is not quite 1 is never rounded up to 100."""
    if share is None:
        return MISSING
    text = f"{100 * share:.{digits}f}"
    return text if share >= 1 or float(text) < 100 else f"{100 - 10**-digits:.{digits}f}+"


def decimal(value: float | None, digits: int = 3) -> str:
    """A plain number; what is not quite 0 is never rounded to it."""
    if value is None:
        return MISSING
    text = f"{value:.{digits}f}"
    return text if value == 0 or float(text) != 0 else f"<{10**-digits:.{digits}f}"
