"""``snap``: a network in fixed point, equal to its own spiking network bit for bit on every machine."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from offspike.activations import QCFS
from offspike.arithmetic.grids import InputGrid, Scale
from offspike.arithmetic.reach import ACCUMULATORS, OPERANDS
from offspike.arithmetic.roles import role
from offspike.capture import captured
from offspike.convert import convert
from offspike.fixed.absorb import absorb
from offspike.fixed.proof import prove
from offspike.fixed.rounding import Widths, round_network
from offspike.fixed.rows import Per
from offspike.folding import fold
from offspike.graph import GraphNetwork
from offspike.hooks import after
from offspike.inspection.obstacles import check_model
from offspike.methods import exact

__all__ = ["check", "snap"]

Arithmetic = Literal["float32", "tf32", "bf16", "int32"]
FEWEST, MOST = 2, 16
PIXEL = 2.0**-7  # the unit of 8-bit pixels: inputs lie between -2 and 2


def snap(
    ann: nn.Module,
    *,
    example: Tensor | tuple[Tensor, ...],
    bits: int | Mapping[str, int] = 8,
    per: Per = "channel",
    calibration: Tensor | tuple[Tensor, ...] | None = None,
    input_bits: int = 10,
    arithmetic: Arithmetic = "float32",
    progress: Callable[[str, int, int], None] | None = None,
) -> GraphNetwork:
    """A copy of a QCFS network in which every weight, bias, threshold and scale lies on a power-of-two grid.

    BatchNorm is folded, thresholds are absorbed (all become 1, so a spike is the number 1), average pools become sums.
    Weights are whole numbers of ``bits`` bits times ``2^-k``, one k a ``"channel"`` or ``"layer"``; a mapping chooses
    by the start of a layer's name, ``{"": 8, "classifier": 4}``. Every sum is then exact and does not depend on its
    order: ``osp.certify`` proves it.

    ``example`` is an input batch: it shows the shapes, and how large inputs are where the network does not know its own
    preprocessing (then they are rounded to ``input_bits`` bits, and larger ones clipped). With ``calibration``, one
    batch of a few hundred training inputs, weights are rounded for least error of each layer's output and biases are
    corrected; without, each weight is rounded for itself. ``progress(layer, done, total)`` hears of each layer.

    ``arithmetic`` is what sums have to be exact in, whatever the input: ``"float32"``; products of ``"tf32"`` or
    ``"bf16"`` numbers summed in float32, as tensor cores do; ``"int32"`` besides float32, in which PyTorch runs it. If
    they cannot be, a ValueError says in which layer, and how many bits would do.
    """
    check_model(ann)
    _check_options(per, input_bits)
    device = next(ann.parameters()).device
    inputs = tuple(x.detach().cpu() for x in _inputs("example", example))
    network = _flattened(ann, inputs)
    preprocess = getattr(ann, "preprocess", None)
    grids = [_input_grid(network, x, preprocess if len(inputs) == 1 else None, input_bits) for x in inputs]
    network = absorb(network, inputs, grids)
    widths = Widths(_bits(network, bits), per)
    data = None if calibration is None else tuple(x.to(device) for x in _inputs("calibration", calibration))
    snapped = round_network(network.to(device), widths, calibration=data, progress=progress).eval()
    if preprocess is not None:
        snapped.preprocess = preprocess
    if len(inputs) == 1:
        snapped.input_shape = tuple(inputs[0].shape[1:])  # bounds are for this shape
    try:
        check(snapped, inputs, arithmetic)
    except ValueError as error:
        most = _enough(network.cpu(), widths, inputs, arithmetic)
        raise ValueError(f"{error}" + (f". At most {most} bits in every layer would do" if most else "")) from None
    return snapped


def _enough(network: GraphNetwork, widths: Widths, inputs: tuple[Tensor, ...], arithmetic: Arithmetic) -> int | None:
    """How many bits a layer may have at most, found by halving; None if fewer bits are not what it takes."""

    def enough(most: int) -> bool:
        fewer = Widths({name: min(bits, most) for name, bits in widths.bits.items()}, widths.per)
        try:
            check(round_network(network, fewer, calibration=None).eval(), inputs, arithmetic)
        except ValueError:
            return False
        return True

    low, high = FEWEST, max(widths.bits.values())
    if high == FEWEST or not enough(low):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def check(snapped: GraphNetwork, inputs: tuple[Tensor, ...], arithmetic: Arithmetic = "float32") -> None:
    """Refuse a network whose sums would not be exact, with a ValueError that names the layer."""
    if arithmetic not in get_args(Arithmetic):
        raise ValueError(f"arithmetic must be one of {', '.join(get_args(Arithmetic))}; got {arithmetic!r}")
    found = sorted({module.levels for module in snapped.modules() if isinstance(module, QCFS)})
    if len(found) > 1:
        raise ValueError(f"activations have L = {', '.join(map(str, found))} levels: T = ρ = L asks for one L")
    levels = found[0] if found else 1
    here = tuple(x.to(next(snapped.parameters()).device) for x in inputs)
    snn = convert(snapped, exact(levels, place="first"), example=here if len(here) > 1 else here[0])
    proof = prove(snapped, snn, steps=levels, inputs=inputs)
    if proof.reasons:
        raise ValueError("with these bits it is not exact: " + "; ".join(proof.reasons[:3]))
    for name, made in proof.sums.items():
        if made.excess(arithmetic) > 0:
            raise ValueError(
                f"{name}: in {arithmetic} numbers may have {OPERANDS[arithmetic]} bits and sums "
                f"{ACCUMULATORS[arithmetic]}; its weights have {made.weight_bits}, its inputs {made.input_bits}, its "
                f"sums {made.bits} (without sign)"
                + ("; input_bits are the bits of the image" if made.input_bits > OPERANDS[arithmetic] else "")
            )


def _inputs(name: str, value: Any) -> tuple[Tensor, ...]:
    """A batch of inputs: a tensor, or a tuple of them for a network of several inputs."""
    inputs = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(x, Tensor) for x in inputs):
        raise TypeError(f"{name} is a batch of inputs, a tensor; got {type(value).__name__}")
    if not all(bool(x.isfinite().all()) for x in inputs):
        raise ValueError(f"{name} holds NaN or infinite values")
    return tuple(x.detach().float() for x in inputs)


def _check_options(per: str, input_bits: int) -> None:
    if per not in get_args(Per):
        raise ValueError(f"per must be one of {', '.join(get_args(Per))}; got {per!r}")
    if not FEWEST <= input_bits <= MOST:
        raise ValueError(f"input_bits must be from {FEWEST} to {MOST}, got {input_bits}")


def _flattened(ann: nn.Module, inputs: tuple[Tensor, ...]) -> GraphNetwork:
    """The network as a graph on the CPU, BatchNorm folded; where that cannot be, a BatchNorm becomes a `Scale`."""
    example = inputs if len(inputs) > 1 else inputs[0]
    folded = fold(deepcopy(ann).cpu().float(), example=example)
    shapes: dict[str, int] = {}
    norms = {n: m for n, m in folded.named_modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)}
    with torch.no_grad(), after(norms, lambda name, m, args, out: shapes.update({name: out.ndim})):
        folded(*(x[:2].clone() for x in inputs))
    for name, norm in norms.items():
        parent, _, attribute = name.rpartition(".")
        if name in shapes:
            setattr(folded.get_submodule(parent), attribute, _as_scale(norm, shapes[name]))
    return captured(folded, example)


@torch.no_grad()
def _as_scale(norm: Any, axes: int) -> Scale:
    if norm.running_mean is None:
        raise ValueError("a BatchNorm without running statistics depends on the batch: it has no fixed point")
    scale = (norm.running_var.double() + norm.eps).rsqrt() * (1 if norm.weight is None else norm.weight.double())
    bias = (0 if norm.bias is None else norm.bias.double()) - norm.running_mean.double() * scale
    shape = (-1, *[1] * (axes - 2))
    return Scale(scale.view(shape), bias.view(shape))


def _bits(network: GraphNetwork, bits: int | Mapping[str, int]) -> dict[str, int]:
    """Bits for each layer with weights, by the longest name that its own begins with."""
    by_name = dict(bits) if isinstance(bits, Mapping) else {"": bits}
    by_name.setdefault("", 8)
    names = [node.target for node in network.graph.nodes if role(node, network) == "synapse"]
    for start, number in by_name.items():
        if isinstance(number, bool) or not isinstance(number, int) or not FEWEST <= number <= MOST:
            raise ValueError(f"bits must be a whole number from {FEWEST} to {MOST}, got {number!r}")
        if start and not any(name == start or name.startswith(f"{start}.") for name in names):
            raise ValueError(f"bits are given for {start!r}, but there is no such layer; layers are {', '.join(names)}")
    return {
        name: by_name[max((start for start in by_name if f"{name}.".startswith(f"{start}." if start else "")), key=len)]
        for name in names
    }


@torch.no_grad()
def _input_grid(network: GraphNetwork, x: Tensor, preprocess: Any, bits: int) -> tuple[InputGrid, Tensor]:
    """How the input is rounded, and the unit of the result.

    With a known preprocessing, ``(u/255 − mean)/std``, the result is the pixel u less ``m = ⌊255·mean⌉``, a whole
    number: nothing is lost. What 255·mean is off from m goes into the bias of the layers that see the input.
    """
    readers = _readers(network)
    if preprocess is not None and readers and all(map(_can_shift, readers)):
        mean, std = (torch.tensor(v, dtype=torch.float64) * 255 for v in (preprocess.mean, preprocess.std))
        if len(mean) == x.shape[1]:
            whole = mean.round()
            for layer in readers:
                _shift(layer, (mean - whole) / std)
            shape = (-1, 1, 1)
            grid = InputGrid(std.view(shape), (mean - whole).view(shape), unit=PIXEL, lowest=-whole.view(shape),
                             highest=(255 - whole).view(shape))  # fmt: skip
            return grid, (1 / (std * PIXEL)).view(shape)
    most = float(x.abs().max())
    reach = 2.0 ** torch.tensor(most if most > 0 else 1.0).log2().ceil().item()
    unit = reach / 2 ** (bits - 1)
    limit = torch.tensor([2.0 ** (bits - 1)])
    return InputGrid(torch.tensor([1 / unit]), torch.zeros(1), unit=unit, lowest=-limit, highest=limit), torch.ones(1)


def _readers(network: GraphNetwork) -> list[nn.Module]:
    """The layers that see the input as it is; none if anything else does, or if one of them is used elsewhere too."""
    start = next(node.name for node in network.graph.nodes if node.kind == "input")
    users = [node for node in network.graph.nodes if start in node.refs]
    targets = [node.target for node in network.graph.nodes]
    if not all(role(node, network) == "synapse" and targets.count(node.target) == 1 for node in users):
        return []
    return [network.get_submodule(node.target) for node in users]


def _can_shift(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros"


def _shift(layer: Any, offset: Tensor) -> None:
    """Let the layer see ``x + offset`` for x (but for its padding): its bias takes the difference out again."""
    per_channel = layer.weight.double().flatten(2).sum(2)
    groups = offset.view(layer.groups, -1).repeat_interleave(len(per_channel) // layer.groups, 0)
    bias = torch.zeros(len(per_channel), dtype=torch.float64) if layer.bias is None else layer.bias.double()
    layer.bias = nn.Parameter((bias - (per_channel * groups).sum(1)).float())
