"""Files that are written whole or not at all: nothing is left of a failure, and the old file stays."""

import errno
from pathlib import Path
from typing import Any

import pytest

from offspike import atomic
from offspike.atomic import whole


@pytest.mark.parametrize("alone", [False, True])
def test_the_new_file_takes_the_place_of_the_old(alone: bool, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    with whole(path, alone=alone) as beside:
        beside.write_text("new")
        assert path.read_text() == "old"
        assert beside.parent == tmp_path
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError("the file says something else"), KeyboardInterrupt()])
def test_an_error_on_the_way_leaves_the_old_file(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")

    def write() -> None:
        with whole(path) as beside:
            beside.write_text("new")
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("call", "code"), [("fsync", errno.ENOSPC), ("replace", errno.ENOSPC), ("fsync", errno.EIO)])
def test_a_failing_disk_leaves_the_old_file(
    call: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_text("old")

    def fail(*_: Any) -> None:
        raise OSError(code, "it failed")

    monkeypatch.setattr(atomic.os, call, fail)
    reason = "the disk is full" if code == errno.ENOSPC else "it failed"
    with pytest.raises(OSError, match=f"^cannot write .*x: {reason}$"), whole(path) as beside:
        beside.write_text("new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_folders_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "no" / "such", tmp_path / "file" / "x", tmp_path / "folder"):
        message = r"cannot write .*: .*; choose a folder that exists"
        with pytest.raises(OSError, match=message), whole(path) as beside:
            beside.write_text("new")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}


def test_two_writers_do_not_meet_and_one_alone_writes_over_what_it_left(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with whole(path) as first, whole(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"
    names = []
    for _ in range(2):
        with whole(path, alone=True) as beside:
            beside.write_text("new")
            names.append(beside)
    assert names[0] == names[1]
