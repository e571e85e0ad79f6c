"""Damaged files by the thousand: deterministic mutations, tried in child processes that may crash or hang."""

import json
import random
import subprocess
import sys
from pathlib import Path


def mutated(content: bytes, seed: int) -> bytes:
    """One of: flipped bits, random bytes, a run of one value, a large number, a cut, a swap, a doubled piece."""
    draw = random.Random(seed)
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        if not data:
            break
        at, kind = draw.randrange(len(data)), draw.randrange(8)
        # Most of a file is weights; its structure lies near its beginning and in between.
        at = draw.randrange(min(len(data), 2048)) if draw.random() < 0.3 else at
        if kind == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[at : at + 8] = draw.randbytes(len(data[at : at + 8]))
        elif kind == 2:
            run = len(data[at : at + draw.choice((4, 16, 64))])
            data[at : at + run] = bytes([draw.choice((0, 255, 1, 127))]) * run
        elif kind == 3:
            data[at : at + 8] = draw.choice((2**63 - 1, 2**64 - 1, 2**32, 2**40, 0)).to_bytes(8, "little")
        elif kind == 4:
            data = data[: max(1, at)]
        elif kind == 5:
            other = draw.randrange(len(data))
            data[at : at + 16], data[other : other + 16] = data[other : other + 16], data[at : at + 16]
        elif kind == 6:
            data[at:at] = data[at : at + 32]
        else:
            del data[at : at + draw.choice((1, 8, 64))]
    return bytes(data)


def attempt(reader: str, original: Path, seeds: range, *, seconds: float) -> dict[str, int]:
    """Try mutations in child processes; a child that crashes or hangs is counted, and another goes on after it.

    ``reader`` is Python code that defines ``read(path)``. Outcomes: "read", "refused" (ValueError or OSError), "crash",
    "hang", or the name of any other exception.
    """
    outcome: dict[str, int] = {}
    start = seeds.start
    while start < seeds.stop:
        command = [sys.executable, __file__, reader, str(original), str(start), str(seeds.stop), str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        for line in lines:
            what = json.loads(line)["outcome"]
            outcome[what] = outcome.get(what, 0) + 1
        start += len(lines)
        if start < seeds.stop:
            if not lines and done.returncode == 1:
                raise RuntimeError(done.stderr[-2000:])
            what = "hang" if done.returncode == -14 else "crash"
            outcome[what] = outcome.get(what, 0) + 1
            start += 1
    return outcome


def _child(reader: str, original: str, first: str, stop: str, seconds: str) -> None:
    import resource
    import signal

    scope: dict = {}
    exec(reader, scope)  # the code of the test itself
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))
    content = Path(original).read_bytes()
    path = Path(original).with_suffix(f".{first}")
    for seed in range(int(first), int(stop)):
        path.write_bytes(mutated(content, seed))
        signal.setitimer(signal.ITIMER_REAL, float(seconds))
        try:
            scope["read"](path)
            what = "read"
        except (ValueError, OSError):
            what = "refused"
        except Exception as error:
            what = type(error).__name__
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.write(json.dumps({"seed": seed, "outcome": what}) + "\n")
        sys.stdout.flush()
    path.unlink()


if __name__ == "__main__":
    _child(*sys.argv[1:])
