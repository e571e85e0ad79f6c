"""docs/adding-a-method.md runs as it stands."""

import re
from pathlib import Path


def test_the_page_runs(capsys):
    page = (Path(__file__).parent.parent / "docs" / "adding-a-method.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) == 3
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 12
    space = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "adding-a-method.md", "exec"), space)
    said = capsys.readouterr().out
    assert "exact          agrees with the ANN on 100%, 12 ticks" in said
    assert "nJ; the ANN" in said
