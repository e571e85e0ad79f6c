"""Files that are written whole or not at all."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["whole", "why"]


@contextmanager
def whole(path: Path, *, alone: bool = False) -> Iterator[Path]:
    """A name beside ``path`` to write to; what is there at the end takes the place of ``path``, safe on the disk.

    After an error nothing of it is left, and the old file is as it was. ``alone`` says that no other process writes
    this file: what a killed one has left behind is then written over.
    """
    beside = path.with_name(f".{path.name}.{'' if alone else secrets.token_hex(4) + '.'}tmp")
    try:
        yield beside
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise OSError(f"cannot write {path}: {why(error)}") from error
    finally:
        with suppress(OSError):
            beside.unlink()


def why(error: OSError) -> str:
    """What went wrong, in words that say what to do."""
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    reason = error.strerror or str(error)
    missing = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS)
    return f"{reason}; choose a folder that exists and is writable" if error.errno in missing else reason
