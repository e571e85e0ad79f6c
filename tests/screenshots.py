"""Pictures of a report for the documentation: ``python tests/screenshots.py report.html docs/images``."""

import sys
import tempfile
from pathlib import Path

from browser import browser

VIEWS = {
    "report-desktop": {"width": 1200, "height": 900},
    "report-dark": {"width": 1200, "height": 900, "scheme": "dark", "at": "one-neuron-step-by-step"},
    "report-phone": {"width": 390, "height": 800, "phone": True},
}


def shoot(page, report, folder):
    """The report on a desk, in the dark, and on a phone; few colours keep the files small."""
    from PIL import Image

    paths = []
    for name, view in VIEWS.items():
        options = {key: value for key, value in view.items() if key != "at"}
        page.open(report, **options)
        if "at" in view:
            page.js(f"document.getElementById('{view['at']}').scrollIntoView()")
        path = folder / f"{name}.png"
        page.screenshot(path)
        with Image.open(path) as image:
            few = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE)  # keeps rare colours
            few.save(path, optimize=True)
        paths.append(path)
    return paths


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as profile, browser(profile) as page:
        shoot(page, Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
