"""Every snippet and command of the README and the documentation is run as it stands, or in a smaller form.

Python blocks and ``offspike`` commands of a page run in its order, in one folder. What needs CIFAR-10, several machines
or another environment is not run, and says why; its options are still checked against the command line.
"""

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
import typer

import offspike as osp
from offspike import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# The names that a page's first snippet takes for granted.
GIVEN = {
    "interop.md": """
import torch
import offspike as osp
x = torch.rand(4, 1, 8, 8)
ann = osp.zoo.small(activation=osp.QCFS(levels=4)).eval()
""",
    "README.md": """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)).eval()
x = torch.rand(20, 8)
loader = [(x, torch.randint(0, 3, (20,)))]
""",
    "speed.md": """
import torch
import offspike as osp
x = torch.rand(4, 1, 8, 8)
ann = osp.zoo.small(activation=osp.QCFS(levels=4)).eval()
""",
    "fixed-point.md": """
import torch
import offspike as osp
x = torch.rand(20, 1, 8, 8)
ann = osp.zoo.small(activation=osp.QCFS(levels=4)).eval()
loader = [(x, torch.randint(0, 10, (20,)))]
""",
}
SMALLER = {
    '.to("cuda")': "",
    "epochs=20": "epochs=2",
    "--epochs 20": "--epochs 1",
    "offspike evaluate mine": "offspike evaluate --limit 60 --method cos mine",
    "offspike evaluate runs": "offspike evaluate --limit 60 runs",
    "--steps 16 --method all": "--steps 4 --method all",
    "offspike analyze": "offspike analyze --limit 60",
    "offspike bench vgg16 --steps 16 --rho 4 --batch 500": "offspike bench small --steps 2 --rho 2 --batch 2",
    "offspike bench vgg16 --steps 16 --batch 50": "offspike bench small --steps 2 --rho 2 --batch 2",
}
NOT_RUN = {
    r"cifar10": "needs CIFAR-10",
    r"^torchrun": "tests/test_cli_train.py runs two processes",
    r"benchmarks/gpu.py": "takes minutes of a GPU",
    r"^make": "CI runs these targets themselves",
    r"^offspike demo": "tests/test_cli.py runs it with fewer epochs",
    r"^python3 -m venv|pip install|^\. ": "the suite runs in such an environment",
}
SIMULATORS = re.compile(r"nirtorch|norse\.|sinabs|snntorch|spikingjelly|graph\.nodes")


def blocks(page):
    """(language, text) of the fenced blocks of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)


def commands(text):
    """The commands of a shell block, without comments."""
    lines = (re.sub(r"\s+#.*|^#.*", "", line).strip() for line in text.replace("\\\n", " ").splitlines())
    return [line for line in lines if line]


def check_options(command):
    """The command line must know the command and take its options."""
    words = [word for word in shlex.split(command.split("offspike ", 1)[1]) if word != "…"]
    group = typer.main.get_command(cli.app)
    name, *arguments = words
    assert name in group.commands, f"there is no command {name}"
    options = {
        text for parameter in group.commands[name].params for text in (*parameter.opts, *parameter.secondary_opts)
    }
    unknown = {word for word in arguments if word.startswith("--")} - options - {"--help", "--debug"}
    assert not unknown, f"{command}: {unknown}"


def run(command, monkeypatch):
    """One ``offspike`` command in this process."""
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code, command


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with a network in it that pages call ``ann.safetensors``."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    osp.save(osp.zoo.small(activation=osp.QCFS(2)).eval(), tmp_path / "ann.safetensors")
    return tmp_path


def name_of(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name_of)
def test_a_page_runs(page, folder, monkeypatch):
    space = {"__name__": "page"}
    exec(GIVEN.get(page.name, ""), space)
    for language, text in blocks(page):
        for long, short in SMALLER.items():
            text = text.replace(long, short)
        if language == "python" and SIMULATORS.search(text):
            continue  # tests/test_simulators.py runs these where they are installed
        if language == "python":
            exec(compile(text, page.name, "exec"), space)
            continue
        assert language in ("", "sh"), f"a block in {language!r} is neither run nor checked"
        for command in commands(text):
            if "offspike " in command:
                check_options(command)
            if not any(re.search(pattern, command) for pattern in NOT_RUN):
                assert command.startswith("offspike "), f"{command}: it is not run, and nothing says why"
                run(command, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_the_text_exist(page):
    for command in re.findall(r"`((?:\.venv/bin/)?offspike [^`\n]+)`", page.read_text(encoding="utf-8")):
        names = re.search(r"\{(.*)\}", command)
        for name in names[1].split(", ") if names else [command.split()[1]]:
            check_options(command.split("{")[0] + name + command.split("}")[-1] if names else command)


def test_a_method_is_added_in_twelve_lines(folder, capsys):
    first, *rest = [text for language, text in blocks(ROOT / "docs/adding-a-method.md") if language == "python"]
    assert len([line for line in first.splitlines() if line.strip()]) <= 12
    space = {"__name__": "page"}
    for text in (first, *rest):
        exec(compile(text, "adding-a-method.md", "exec"), space)
    said = capsys.readouterr().out
    assert "exact          agrees with the ANN on 100%, 12 ticks" in said
    assert "nJ; the ANN" in said


def test_every_reason_is_needed():
    every = [
        command
        for page in PAGES
        for language, text in blocks(page)
        if language != "python"
        for command in commands(text)
    ]
    for pattern, reason in NOT_RUN.items():
        assert any(re.search(pattern, command) for command in every), f"nothing is left out because {reason}"
