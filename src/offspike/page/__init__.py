"""The report as one HTML file: what was found, in words, tables and figures, and how it was made.

The file needs nothing else: no network, no fonts, and the only script that may run is the one that moves through time.
Every word and number in it is derived from the findings.
"""

import base64
import hashlib
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from offspike.look.findings import Findings
from offspike.page import certificate, layers, markup, neurons, overview, samples, training

__all__ = ["write_page"]

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="$policy">
<title>$title</title>
<style>
$css</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
<header>
<h1>$title</h1>
$headline
<nav aria-label="Contents"><ul>
$contents
</ul></nav>
</header>
<main id="main">
$sections</main>
<footer><p>Made by offspike. One file; nothing is loaded from elsewhere.</p></footer>
<script>$script</script>
</body>
</html>
""")


def write_page(path: str | Path, findings: Findings, *, title: str, provenance: dict[str, str]) -> None:
    """Write the page. ``provenance`` says how it was made: command, versions, data, samples, seed."""
    sections = {
        "Accuracy": overview.accuracy(findings),
        "True latency": overview.latency(findings),
        "Early exit": samples.early_exit(findings),
        "Offset spikes": layers.offset_spikes(findings.records),
        "Firing rates": layers.firing_rates(findings.reports),
        "Energy": layers.energy(findings),
        "One neuron, step by step": neurons.close_up(findings),
        "Answers": samples.answers(findings),
        "Training": training.curves(findings.history),
        "Certificate": certificate.certificate(findings.certificate),
        "How it was made": markup.definitions(provenance),
    }
    shown = {name: body for name, body in sections.items() if body}
    if not set(shown) - {"How it was made"}:
        raise ValueError("a page needs findings: reports, records, a training or a certificate")
    script = _asset("page.js")
    html = PAGE.substitute(
        title=escape(title),
        css=_asset("page.css"),
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src '{_hash(script)}'",
        script=script,
        headline=overview.headline(findings) + training.headline(findings.history),
        contents="\n".join(f'<li><a href="#{markup.slug(name)}">{name}</a></li>' for name in shown),
        sections="".join(markup.section(name, body) for name, body in shown.items()),
    )
    try:
        Path(path).write_text(markup.with_unique_ids(html), encoding="utf-8")
    except OSError as error:
        raise OSError(error.errno, f"cannot write the page: {error.strerror}", str(path)) from error


def _hash(script: str) -> str:
    """The browser runs this script and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files("offspike.page").joinpath(name).read_text(encoding="utf-8")
