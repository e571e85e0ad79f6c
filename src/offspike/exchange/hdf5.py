"""Reading HDF5 files that nobody vouches for.

``read`` does it in a process of its own, with limits of time and memory: HDF5 is a large format, and a damaged file can
crash the library that reads it. Run as a script, this file is that process. It needs h5py and numpy only, follows no
link out of the file, loads no filter plugins, unpickles nothing, and reads no array before its size is known.
"""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Tree", "read", "tree"]

Tree = dict[str, Any]  # names to arrays, strings, and trees

SECONDS = 60
MEMORY = 16 * 2**30  # of address space
LARGEST = 8 * 2**30  # bytes in all arrays
DEEPEST = 12
MOST_OBJECTS = 200_000
MOST_STRINGS = 400_000
RATIO = 1100  # deflate does not do better than 1032 : 1; more is an array that is not in the file
FILTERS = {1, 2, 3}  # deflate, shuffle, Fletcher's checksum: those built into HDF5


def read(path: Path, *, seconds: float = SECONDS) -> Tree:
    """The groups, arrays and strings of a file; a ValueError says what is wrong with it."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: check the path")
    with path.open("rb") as file:
        if file.read(8) != b"\x89HDF\r\n\x1a\n":
            raise ValueError(f"{path} is not an HDF5 file, which NIR files are")
    command = [sys.executable, "-I", __file__, str(path.resolve())]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{path} cannot be read: not done within {seconds:g} seconds") from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        refused = done.returncode == 2 and words
        reason = words[-1][:300] if refused else f"the HDF5 library failed on it (status {done.returncode})"
        raise ValueError(f"{path} cannot be read: {reason}")
    return _unpack(done.stdout)


def tree(path: str) -> Tree:
    """What ``read`` returns, read in this process."""
    import h5py

    with h5py.File(path, "r") as file:
        return _Reader(h5py).group(file, depth=0)


class _Reader:
    def __init__(self, h5py: Any) -> None:
        self.h5py = h5py
        self.seen: set[Any] = set()
        self.bytes = 0
        self.strings = 0

    def group(self, group: Any, *, depth: int) -> Tree:
        if depth > DEEPEST:
            raise ValueError("groups are nested too deeply")
        found: Tree = {}
        for name in group:
            link = group.get(name, getlink=True)
            if not isinstance(link, self.h5py.HardLink):
                raise ValueError(f"{name!r} is a link to another place, which is not followed")
            item = group[name]
            address = self.h5py.h5o.get_info(item.id).addr
            if address in self.seen or len(self.seen) > MOST_OBJECTS:
                raise ValueError(f"{name!r} occurs twice: the groups form a cycle, or share what they hold")
            self.seen.add(address)
            if isinstance(item, self.h5py.Group):
                found[name] = self.group(item, depth=depth + 1)
            elif isinstance(item, self.h5py.Dataset):
                found[name] = self.values(name, item)
            else:
                raise ValueError(f"{name!r} is neither a group nor an array")
        return found

    def values(self, name: str, data: Any) -> Any:
        if data.is_virtual or data.external is not None:
            raise ValueError(f"{name!r} lies in another file")
        filters = data.id.get_create_plist()
        if any(filters.get_filter(i)[0] not in FILTERS for i in range(filters.get_nfilters())):
            raise ValueError(f"{name!r} is compressed by an unknown filter")
        if data.shape is None or len(data.shape) > 8:
            raise ValueError(f"{name!r} has no shape, or too many axes")
        if self.h5py.check_string_dtype(data.dtype) is not None:
            return self._strings(name, data)
        if data.dtype.kind not in "fiub" or data.dtype.itemsize > 8:
            raise ValueError(f"{name!r} holds neither numbers nor text ({data.dtype})")
        self.bytes += data.nbytes
        if data.nbytes > RATIO * data.id.get_storage_size() or self.bytes > LARGEST:
            raise ValueError(f"{name!r} claims to be {list(data.shape)}, more than the file can hold")
        return np.asarray(data[()])

    def _strings(self, name: str, data: Any) -> Any:
        self.strings += data.size
        if self.strings > MOST_STRINGS or data.nbytes > RATIO * data.id.get_storage_size():
            raise ValueError(f"{name!r} claims to be {list(data.shape)} texts, more than the file can hold")
        values = data[()]
        if data.shape == ():
            return _text(values)
        return np.array([_text(value) for value in values.ravel()], dtype=object).reshape(data.shape)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _pack(found: Tree) -> bytes:
    """A tree as a JSON index and an npz of its arrays."""
    arrays: list[Any] = []

    def index(value: Any) -> Any:
        if isinstance(value, dict):
            return {"tree": {key: index(item) for key, item in value.items()}}
        if isinstance(value, str):
            return {"text": value}
        if value.dtype == object:
            return {"texts": value.ravel().tolist(), "shape": list(value.shape)}
        arrays.append(value)
        return {"array": len(arrays) - 1}

    described = json.dumps(index(found))
    buffer = io.BytesIO()
    np.savez(buffer, index=np.array(described), **{f"a{i}": array for i, array in enumerate(arrays)})
    return buffer.getvalue()


def _unpack(content: bytes) -> Tree:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:

        def value(entry: Any) -> Any:
            match entry:
                case {"tree": items}:
                    return {key: value(item) for key, item in items.items()}
                case {"text": text}:
                    return text
                case {"texts": texts, "shape": shape}:
                    return np.array(texts, dtype=object).reshape(shape)
            return arrays[f"a{entry['array']}"]

        found: Tree = value(json.loads(str(arrays["index"])))
        return found


def _limit() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limits; time and sizes are still bounded
        return
    for kind, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _main(path: str) -> int:
    _limit()
    try:
        content = _pack(tree(path))
    except Exception as error:  # whatever h5py raises on a damaged file becomes one line
        sys.stderr.write(" ".join(f"{error}".split()) or type(error).__name__)
        return 2
    sys.stdout.buffer.write(content)
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
