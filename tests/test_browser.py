"""The report in a real Chromium: quiet, offline, usable by keyboard and screen reader, readable in light and dark."""

import base64
import re
from itertools import pairwise

import pytest
import torch

import offspike as osp
from browser import CHROMIUM, WHY_NOT, browser
from offspike import datasets
from offspike.experiment import batched
from offspike.look.examine import examine
from offspike.page import write_page
from screenshots import shoot
from test_page_sections import HISTORY

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)

# Every visible text whose contrast with what is really behind it is too low (WCAG 2.2, level AA).
CONTRAST = r"""(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].map((x) => x / 255);
  };
  const over = (top, under) => top.slice(0, 3).map((x, k) => x * top[3] + under[k] * (1 - top[3])).concat(1);
  const light = (c) => c.slice(0, 3).map((x) => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4)
    .reduce((sum, x, k) => sum + x * [.2126, .7152, .0722][k], 0);
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [1, 1, 1, 1]);
  };
  const bad = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.getClientRects().length || element.closest(".later, script, option, .skip")) continue;
    const style = getComputedStyle(element), under = behind(element);
    const text = over(rgba(element instanceof SVGElement ? style.fill : style.color), under);
    const [a, b] = [light(text), light(under)].sort((x, y) => y - x), ratio = (a + .05) / (b + .05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) bad.push([element.tagName, element.textContent.trim().slice(0, 40), ratio]);
  }
  return bad;
})()"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page with every section, on a small network that has not been trained."""
    torch.manual_seed(0)
    ann, test = osp.zoo.small(activation=osp.QCFS(2)).eval(), datasets.load_digits("test")
    x, y = test.preprocess(test.images[:30]), test.labels[:30]
    found = examine(
        ann, lambda: batched(x, y, 30), {"θ/2": osp.methods.qcfs(), "exact": osp.methods.exact(2)}, steps=4, count=30,
        with_energy=True, with_answers=True, with_layers=True, classes=test.classes,
    )  # fmt: skip
    found.history = HISTORY
    found.certificate = osp.certify(ann, osp.convert(ann, osp.methods.exact(2)), [x])
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_page(path, found, title="Digits", provenance={"command": "offspike evaluate"})
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


def test_it_is_quiet_small_and_asks_for_nothing(page, report):
    assert report.stat().st_size < 5_000_000
    page.open(report)
    assert page.complaints() == []
    assert page.js("document.querySelectorAll('section').length") == 11
    assert page.js("performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length") == 0


def test_the_policy_stops_any_other_script(page, report, tmp_path):
    hostile = tmp_path / "hostile.html"
    hostile.write_text(report.read_text().replace("</body>", "<script>window.ran = 1</script></body>"))
    page.open(hostile)
    assert page.js("window.ran === undefined")
    assert page.complaints() != []


def test_the_slider_moves_by_keyboard(page, report):
    page.open(report)
    page.js("document.getElementById('step').focus()")
    page.press("Home", 36)
    said = [page.js("document.getElementById('said').textContent")]
    for t in (2, 3, 4):
        page.press("ArrowRight", 39)
        said.append(page.js("document.getElementById('said').textContent"))
        shown = "[...document.querySelectorAll('[data-neuron]:not([hidden]) g[data-t]')]"
        assert page.js(f"{shown}.filter(g => !g.classList.contains('later')).length") == 2 * t, "before and after"
        assert page.js("document.getElementById('step').getAttribute('aria-valuetext')") == said[-1]
    assert [text.split(":")[0] for text in said] == ["T = 1", "T = 2", "T = 3", "T = 4"]
    assert page.js("document.querySelector('tr.now th').textContent") == "4"


def test_another_neuron_can_be_chosen_by_keyboard(page, report):
    page.open(report)
    page.js("document.getElementById('neuron').focus()")
    before = page.js("document.getElementById('neuron').value")
    page.press("End", 35)
    chosen = page.js("document.getElementById('neuron').value")
    assert chosen != before
    visible = "[...document.querySelectorAll('[data-{0}]:not([hidden])')].map(e => e.dataset.{0})"
    assert page.js(visible.format("neuron")) == [chosen]
    assert page.js(visible.format("layer")) == [chosen.split("-")[0]]


def test_without_scripts_everything_of_one_neuron_is_there(page, report):
    page("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(report)
        root = page("DOM.getDocument", depth=0)["root"]["nodeId"]
        found = [len(page("DOM.querySelectorAll", nodeId=root, selector=s)["nodeIds"])
                 for s in ("[data-neuron]:not([hidden])", ".controls[hidden]", ".later")]  # fmt: skip
        assert found == [1, 1, 0]
    finally:
        page("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(page, report, scheme):
    page.open(report, scheme=scheme)
    page.js("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.js("getComputedStyle(document.body).backgroundColor") == {
        "light": "rgb(250, 249, 246)", "dark": "rgb(21, 24, 28)"}[scheme]  # fmt: skip
    assert page.js(CONTRAST) == []


def test_a_screen_reader_finds_its_way(page, report):
    page.open(report)
    nodes = [node for node in page("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes]
    roles = {role for role, _ in named}
    assert {"banner", "navigation", "main", "contentinfo", "slider", "combobox", "status"} <= roles
    for role in ("image", "region", "slider", "combobox", "table", "link", "navigation"):
        assert all(name for kind, name in named if kind == role), role
    assert ("slider", "Time-step T") in named
    levels = page.js("[...document.querySelectorAll('h1, h2, h3')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(levels)), "no level is left out"
    page.press("Tab", 9)
    assert page.js("document.activeElement.className") == "skip"


def test_a_phone_does_not_scroll_sideways(page, report):
    page.open(report, width=360, height=740, phone=True)
    assert page.js("document.documentElement.scrollWidth") <= 360


def test_it_prints_in_light_colours(page, report):
    page.open(report, scheme="dark")
    page.media("dark", "print")
    assert page.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.js("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.js(CONTRAST) == []
    pdf = base64.b64decode(page("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) > 2


def test_screenshots_for_the_documentation(page, report, tmp_path):
    paths = shoot(page, report, tmp_path)
    assert [path.name for path in paths] == ["report-desktop.png", "report-dark.png", "report-phone.png"]
    assert all(2_000 < path.stat().st_size < 200_000 for path in paths)
