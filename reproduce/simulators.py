"""How other people's simulators are asked to run a NIR file: as they read it, and with what has to be set by hand.

Each function returns the spikes of every layer of neurons, ``[T, B, …]``; the code between
the comments "set" is what docs/interop.md shows.
"""

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import nir
import nirtorch
import torch
from torch import Tensor, nn

Spikes = dict[str, Tensor]


@contextmanager
def watching(modules: dict[str, nn.Module]) -> Iterator[Spikes]:
    """What neurons send at each call, stacked."""
    seen: dict[str, list[Tensor]] = {name: [] for name in modules}
    found: Spikes = {}
    hooks = [
        module.register_forward_hook(
            lambda m, args, out, name=name: seen[name].append((out[0] if isinstance(out, tuple) else out).detach())
        )
        for name, module in modules.items()
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
    found.update({name: torch.stack(values) for name, values in seen.items()})


def neurons(graph: nir.NIRGraph) -> dict[str, nir.NIRNode]:
    """The nodes of neurons by name."""
    return {name: node for name, node in graph.nodes.items() if isinstance(node, nir.IF | nir.LIF | nir.CubaLIF)}


def branched(graph: nir.NIRGraph) -> bool:
    """Whether nodes have several sources: `nirtorch.load` runs such a node before all of them are done."""
    targets = [target for _, target in graph.edges]
    return len(targets) > len(set(targets))


def norse(path: str, x: Tensor, steps: int, *, by_hand: bool) -> Spikes:
    import norse.torch
    from norse.torch.functional.reset import reset_subtract
    from norse.torch.utils.import_nir import _import_norse_module

    graph = nir.read(path, type_check=False)
    if by_hand:
        # set
        options = {"dt": 1.0, "reset_method": reset_subtract}
        if branched(graph):
            read = partial(_import_norse_module, ignore_warnings=True, **options)
            net = nirtorch.nir_to_torch(graph, dict.fromkeys((nir.Affine, nir.Conv2d, nir.CubaLIF, nir.Flatten), read))
        else:
            net = norse.torch.from_nir(graph, ignore_warnings=True, **options)
        # set
    else:
        net = norse.torch.from_nir(graph, ignore_warnings=True)
    state = None
    with watching({name: net.get_submodule(name) for name in neurons(graph)}) as spikes:
        for _ in range(steps):
            _, state = net(x, state)
    return spikes


def sinabs(path: str, x: Tensor, steps: int, *, by_hand: bool) -> Spikes:
    from sinabs.activation import SingleSpike
    from sinabs.nir import _import_sinabs_module, from_nir

    graph = nir.read(path, type_check=False)
    net = from_nir(graph, batch_size=len(x))
    if by_hand and branched(graph):
        # set
        read = partial(_import_sinabs_module, batch_size=len(x), num_timesteps=None)
        net = nirtorch.nir_to_torch(
            graph, dict.fromkeys((nir.Affine, nir.Conv1d, nir.Conv2d, nir.IF, nir.Flatten), read)
        )
        # set
    layers = {name: net.get_submodule(name) for name in neurons(graph)}
    if by_hand:
        # set
        for name, layer in layers.items():
            layer.spike_fn, layer.min_v_mem = SingleSpike, None
            v0 = torch.as_tensor(graph.nodes[name].metadata["v0"])
            layer.v_mem = v0.expand(len(x), *v0.shape).clone()
        # set
    with watching(layers) as spikes:
        net(x.unsqueeze(1).expand(len(x), steps, *x.shape[1:]).flatten(0, 1))
    return {name: s[0].unflatten(0, (len(x), steps)).transpose(0, 1) for name, s in spikes.items()}


def snntorch(path: str, x: Tensor, steps: int, *, by_hand: bool) -> Spikes:
    from snntorch.import_nir import import_from_nir

    graph = nir.read(path, type_check=False)
    net = import_from_nir(graph)
    layers = {name: net.get_submodule(name) for name in neurons(graph)}
    if by_hand:
        # set
        for name, layer in layers.items():
            layer.reset_mechanism, layer.state_function, layer.reset_delay = "subtract", layer._base_sub, True
            start = torch.as_tensor(graph.nodes[name].metadata["start"])
            layer.mem = start.expand(len(x), *start.shape).clone()
        # set
    state = None
    with watching(layers) as spikes:
        for _ in range(steps):
            _, state = net(x, state)
    return spikes


def spikingjelly(path: str, x: Tensor, steps: int, *, by_hand: bool) -> Spikes:
    from spikingjelly.activation_based.nir_exchange import import_from_nir

    graph = nir.read(path, type_check=False)
    net = import_from_nir(graph, dt=1.0)
    layers = {name: net.get_submodule(name) for name in neurons(graph)}
    if by_hand:
        # set
        for name, layer in layers.items():
            layer.module.v_reset = None
            v0 = torch.as_tensor(graph.nodes[name].metadata["v0"])
            layer.module.v = v0.expand(len(x), *v0.shape).clone()
        # set
    state = None
    with watching(layers) as spikes:
        for _ in range(steps):
            _, state = net(x, state)
    return spikes


SIMULATORS: dict[str, Callable[..., Spikes]] = {
    "norse": norse, "sinabs": sinabs, "snntorch": snntorch, "spikingjelly": spikingjelly,
}  # fmt: skip


@torch.no_grad()
def run(name: str, path: str, x: Tensor, steps: int, *, by_hand: bool) -> Spikes | str:
    """The spikes of one simulator, or in one line why it has none."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            found = SIMULATORS[name](path, x, steps, by_hand=by_hand)
        graph = nir.read(path, type_check=False)
        return {graph.nodes[node].metadata["label"]: spikes for node, spikes in found.items()}
    except Exception as error:  # whatever a simulator raises is what docs/interop.md has to say
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
