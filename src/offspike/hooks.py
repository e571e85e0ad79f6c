"""Modules watched while a ``with`` block lasts: no hook is left behind, whatever happens inside."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import nn

__all__ = ["after", "before"]


@contextmanager
def after(modules: Mapping[str, nn.Module], look: Callable[[str, Any, tuple[Any, ...], Any], Any]) -> Iterator[None]:
    """``look(name, module, inputs, output)`` when one of the modules has run; a value that it returns is sent on."""
    with ExitStack() as stack:
        for name, module in modules.items():
            stack.callback(module.register_forward_hook(partial(look, name)).remove)
        yield


@contextmanager
def before(modules: Mapping[str, nn.Module], look: Callable[[str, Any, tuple[Any, ...]], None]) -> Iterator[None]:
    """``look(name, module, inputs)`` when one of the modules is about to run."""
    with ExitStack() as stack:
        for name, module in modules.items():
            stack.callback(module.register_forward_pre_hook(partial(look, name)).remove)
        yield
