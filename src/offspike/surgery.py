"""Looking into a model and exchanging its parts, always on a copy."""

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from offspike.activations import Activation
from offspike.capture import capture

__all__ = ["Finding", "audit", "refuse", "replace"]


@dataclass(frozen=True)
class Finding:
    """One thing that ``audit`` has to say: where, what, how to mend it, and whether it stops conversion."""

    where: str
    what: str
    fix: str
    fatal: bool

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. {self.fix}"


_PREPARE = "osp.prepare(model, osp.QCFS(levels=4), example=x) replaces it; then train or call osp.init_thresholds"
_POOL = (
    "the maximum over spikes is not the spike of the maximum; osp.prepare puts average pooling in its place "
    "(train the network with it)"
)
_SMOOTH = "a spiking neuron computes a clipped ReLU; train the network with osp.QCFS instead"
_MIXES = "it is not linear in the spikes of one step; use BatchNorm, which is affine once trained"

OBSTACLES: dict[type[nn.Module], tuple[str, str]] = {
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.LeakyReLU), ("an activation without a threshold", _PREPARE)),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), ("max-pooling", _POOL)),
    **dict.fromkeys(
        (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), ("adaptive max-pooling", _POOL)
    ),
    **dict.fromkeys(
        (nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.SELU, nn.CELU, nn.Mish, nn.Softplus, nn.PReLU, nn.Hardswish),
        ("an activation that spikes cannot follow", _SMOOTH),
    ),
    **dict.fromkeys(
        (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.LocalResponseNorm),
        ("a normalisation over each sample", _MIXES),
    ),
    **dict.fromkeys((nn.Softmax, nn.LogSoftmax), ("a softmax", "leave it out: the largest logit is the same")),
    **dict.fromkeys((nn.RNN, nn.LSTM, nn.GRU), ("a recurrent layer", "only feed-forward networks can be converted")),
    nn.MultiheadAttention: ("softmax attention", "only networks of linear layers and clipped ReLUs can be converted"),
}


Kind = type[nn.Module] | tuple[type[nn.Module], ...]


def replace(model: nn.Module, kind: Kind, build: Callable[[str, nn.Module], nn.Module]) -> nn.Module:
    """A copy of ``model`` in which every module of type ``kind`` is ``build(name, module)``."""
    model = deepcopy(model)
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, kind):
            if not path:
                return build(path, module)
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, build(path, module))
    return model


def audit(model: nn.Module, x: Tensor | None = None) -> list[Finding]:
    """What stands in the way of converting ``model``, module by module; ``x`` is an example input, run if given."""
    findings = []
    for name, module in model.named_modules():
        if type(module) in OBSTACLES:
            what, fix = OBSTACLES[type(module)]
            findings.append(Finding(name or "the model", f"{type(module).__name__} is {what}", fix, True))
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            findings.append(Finding(name, "it holds NaN or infinite values", "train or load the model again", True))
    if not any(isinstance(module, Activation) for module in model.modules()):
        what = "there is nothing to convert: no QCFS or ClippedReLU in it"
        findings.append(Finding("the model", what, _PREPARE, True))
    findings += _functional(model)
    if x is not None:
        findings += _shared(model, x)
    return findings


def refuse(findings: list[Finding]) -> None:
    """Raise a ValueError that names every fatal finding, if there is one."""
    fatal = [str(finding) for finding in findings if finding.fatal]
    if fatal:
        raise ValueError("this model cannot be converted:\n- " + "\n- ".join(fatal))


def _functional(model: nn.Module) -> list[Finding]:
    """Obstacles that are function calls, where the model can be traced."""
    try:
        graph = capture(model)
    except ValueError as error:
        fix = "it converts if all activations are modules; the input is then repeated at every step, which is slower"
        return [Finding("the model", f"its operations could not be listed ({error})", fix, False)]
    calls = [(node, node.target.rpartition(".")[2]) for node in graph.nodes if node.kind in ("function", "method")]
    findings = [
        Finding(node.name, f"{node.target} is an activation without a threshold", "make it a module, nn.ReLU", True)
        for node, name in calls
        if name.rstrip("_") in ("relu", "relu6", "leaky_relu", "hardtanh", "clamp")
    ]
    return findings + [
        Finding(node.name, f"{node.target} is max-pooling", _POOL, True) for node, name in calls if "max_pool" in name
    ]


@torch.no_grad()
def _shared(model: nn.Module, x: Tensor) -> list[Finding]:
    """Activations that are called more than once in a forward pass (of a copy: batch norms must not learn from it)."""
    calls: Counter[str] = Counter()
    model = deepcopy(model).eval()
    for name, module in model.named_modules():
        if isinstance(module, Activation):
            module.register_forward_hook(lambda *_, name=name: calls.update([name]))
    model(x)
    fix = "give each use an activation of its own"
    return [Finding(name, f"it is used {n} times", fix, True) for name, n in calls.items() if n > 1]
