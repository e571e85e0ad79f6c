"""The command ``audit``: what becomes of each operation of a model in somebody's own Python file."""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import Loader
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, cast

import torch
import typer
from rich.markup import escape
from torch import nn

from offspike.cli.shared import Json, check_writable, console, table_of, write_json

Target = Annotated[
    str, typer.Argument(help="file.py:name, a class or function that makes the model; or a file of osp.save.")
]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", help="Shape of an input with its batch axis, 1,3,32,32; repeat for several."),
]


def audit(target: Target, shapes: Inputs = None, json_file: Json = None) -> None:
    """Every operation of a model in order, what becomes of it, and what stands in the way of converting it.

    The Python file is run, as importing it would. Exit code 0: it can be converted, as it is or by osp.prepare; 1: not.

    Example: offspike audit models.py:ResNet --input 1,3,32,32
    """
    from offspike.surgery import audit as look

    check_writable(json_file, keep=[target])
    sizes = [_shape(text) for text in shapes or []]
    model = _model(target).eval()
    inputs = tuple(torch.randn(size, generator=torch.Generator().manual_seed(0)) for size in sizes)
    _try(model, inputs)
    found = look(model, inputs or None)
    _show_operations(found)
    errors = _pool_errors(model, inputs) if found.verdict == "prepare" and inputs else []
    _show_findings(found, target, bool(inputs))
    if json_file:
        pools = [error.to_dict() for error in errors]
        write_json(json_file, {"target": target, **found.to_dict(), "pool_errors": pools})
    if found.verdict == "refused":
        raise typer.Exit(1)


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(size) for size in text.split(","))
    except ValueError:
        sizes = ()
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"--input is a shape with its batch axis, such as 1,3,32,32; got {text!r}")
    return sizes


def _model(target: str) -> Any:
    """The model that ``file.py:name`` makes, or the one in a saved file."""
    from offspike.checkpoint import load

    path, _, name = target.rpartition(":")
    if not path or not path.endswith(".py"):
        if target.endswith(".py"):
            raise ValueError(f"say which class or function of {target} makes the model: {target}:NAME")
        if path and not Path(target).exists():
            raise ValueError(
                f"{target} is neither file.py:name nor a saved file: give the .py file that makes the model"
            )
        return load(target)
    with _imported(Path(path)) as module:
        made = _named(module, path, name)
        if callable(made) and not isinstance(made, nn.Module):
            needed = _needed(made)
            if needed:
                advice = f"write a function without arguments that returns it, def audited(): return {name}(…)"
                raise ValueError(f"{name} needs arguments ({', '.join(needed)}): {advice}")
            made = _run(made, f"{name}()")
    if not isinstance(made, nn.Module):
        raise ValueError(f"{target} gives {type(made).__name__}, not a torch.nn.Module")
    return made


@contextmanager
def _imported(path: Path) -> Iterator[ModuleType]:
    """The file as a module, run with its folder on the path, as ``python file.py`` would.

    It has its name for the length of a ``with`` block (dataclasses ask for it), and gives it back: it may be that of a
    package.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # a .py file always has one
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(spec.name)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[spec.name] = module
    try:
        _run(lambda: cast(Loader, spec.loader).exec_module(module), str(path))
        yield module
    finally:
        sys.path.pop(0)
        sys.modules.pop(spec.name, None)
        if before is not None:
            sys.modules[spec.name] = before


def _named(module: ModuleType, path: str, name: str) -> Any:
    """What the file calls ``name``."""
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        raise ValueError(f"{path} has no {name!r}; it has {', '.join(own) or 'no class or function'}")
    return getattr(module, name)


def _needed(build: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(build).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]


def _run(code: Callable[[], Any], what: str) -> Any:
    """Somebody's own code: whatever it raises becomes one line that names theirs."""
    try:
        return code()
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        inside = (__file__, "<", str(Path(torch.__file__).parent))
        own = [frame for frame in frames if not frame.filename.startswith(inside)]
        place = f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""
        raise ValueError(f"{what} does not run: {place}{type(error).__name__}: {error}") from error


def _try(model: Any, inputs: tuple[Any, ...]) -> None:
    """Whether the model takes these inputs at all."""
    if inputs:
        shapes = " ".join(f"--input {','.join(map(str, x.shape))}" for x in inputs)
        with torch.no_grad():
            _run(lambda: model(*(x.clone() for x in inputs)), f"the model with {shapes}")


def _show_operations(found: Any) -> None:
    words = ("module", "operation", "line", "what becomes of it")
    table = table_of(("#", *words), left=words, wrap=True)
    for number, operation in enumerate(found.operations, 1):
        style = "red" if operation.fate == "refused" else None
        line = operation.source.rpartition("/")[2].replace(", line ", ":")
        cells = (operation.where, operation.what.removeprefix("torch.nn.functional."), line, operation.fate)
        table.add_row(str(number), *map(escape, cells), style=style)
    if found.operations:
        console.print(table)


def _show_findings(found: Any, target: str, tried: bool) -> None:
    said = ""
    for finding in found:
        mark = "[red]✗[/]" if finding.fatal else "[dim]–[/]"
        place = f" ({finding.source})" if finding.source else ""
        console.print(f"{mark} [bold]{escape(finding.where)}[/]{escape(place)}: {escape(finding.what)}", soft_wrap=True)
        console.print(
            f"  {'fix: as above' if finding.fix == said else escape(finding.fix)}", style="dim", soft_wrap=True
        )
        said = finding.fix
    words = {
        "ready": "can be converted as it is: osp.convert(model, osp.methods.exact(rho=4))",
        "prepare": "can be converted: osp.prepare makes it ready",
        "refused": "cannot be converted as it is",
    }
    console.print(f"{escape(target)} {words[found.verdict]}.", style="bold", soft_wrap=True)
    if not tried:
        console.print("Give an input shape, --input 1,3,32,32, to see also whether samples stay apart.", style="dim")


def _pool_errors(model: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """Measure and show what each way to treat max-pooling costs; nothing where there is none."""
    from offspike.pool_errors import pool_errors

    errors = pool_errors(model, inputs, steps=8)
    if errors:
        title = "max-pooling at T=8, error against the maximum of the rates"
        table = table_of(("max-pool", "choice", "rms", "mean"), left=["max-pool", "choice"], title=title, wrap=True)
        for error in errors:
            table.add_row(escape(error.where), error.choice, f"{error.rms:.2%}", f"{error.mean:+.2%}")
        console.print(table)
        console.print("On random inputs; for your own images: osp.pool_errors(model, images).", style="dim")
    return errors
