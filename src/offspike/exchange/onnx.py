"""ONNX: the network unrolled over T steps in one file, calibration included.

Opset 17, float32, any batch size: input ``x [B, …]``, output ``logits [T, B, …]``. Time is folded into the batch axis
as in `clock.py`; the image and what is computed from it alone is computed once; each layer of neurons is written out
step by step. A file is left only if onnxruntime gives the spikes of the network.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offspike.atomic import whole
from offspike.exchange.formulas import Expression, Page, fire, start
from offspike.exchange.nir import differing, spikes, version
from offspike.exchange.parts import Part
from offspike.exchange.wiring import wire
from offspike.network import SpikingNetwork, check_spiking

__all__ = ["OPSET", "to_onnx"]

OPSET = 17
LARGEST = 2**31 - 2**20  # what a protocol buffer holds


def to_onnx(snn: SpikingNetwork, x: Tensor, path: str | Path, *, steps: int = 4, check: bool = True) -> None:
    """Write ``snn(x, steps=steps)`` as an ONNX file, and run it with onnxruntime on ``x``: the spikes must be the same.

    The file grows with ``steps`` and ρ (a few nodes a step and layer): for small T. The causal schedule is not
    unrolled. The input grid of a snapped network stays outside, as with ``to_nir``. ``check=False`` compares nothing.
    """
    check_spiking(snn, "to_onnx")
    onnx = _library(check)
    if snn.method.rho and snn.method.schedule == "causal":
        raise ValueError("the causal schedule runs the network twice, which is not unrolled: use schedule='layerwise'")
    if steps < 1:
        raise ValueError(f"steps must be >= 1, got {steps}")
    wiring = wire(snn.model, x)
    unrolled = _Unrolled(onnx, wiring.parts, max(steps, snn.method.rho), steps)
    content = unrolled.model(watched=False)
    if len(content) > LARGEST:
        raise ValueError(f"the file would be {len(content) / 2**30:.1f} GiB, more than ONNX holds in one file")
    if check:
        _compare(snn, unrolled, x, wiring.front.to(x.device)(x), steps)
    with whole(Path(path)) as beside:
        beside.write_bytes(content)


class _Unrolled:
    """The parts of a network as ONNX nodes over ``horizon`` steps, of which ``steps`` are returned."""

    def __init__(self, onnx: Any, parts: Sequence[Part], horizon: int, steps: int) -> None:
        self.onnx, self.parts, self.horizon, self.steps = onnx, parts, horizon, steps
        self.page = Page(onnx)
        self.tensors: dict[str, Expression] = {}
        self.steady: set[str] = set()  # parts that do not change over time: computed once
        self.watched: dict[str, str] = {}
        for part in parts:
            self.tensors[part.name] = self._draw(part)

    def model(self, *, watched: bool) -> bytes:
        """The file; with ``watched`` it also returns the spikes of each layer."""
        helper, kind = self.onnx.helper, self.onnx.TensorProto
        given, result = self.parts[0], self.parts[-1]
        inputs = [helper.make_tensor_value_info("x", kind.FLOAT, ["batch", *given.shape])]
        outputs = [helper.make_tensor_value_info("logits", kind.FLOAT, [self.steps, "batch", *result.shape])]
        if watched:
            outputs += [helper.make_tensor_value_info(name, kind.BOOL, None) for name in self.watched.values()]
        constants = [self.onnx.numpy_helper.from_array(array, key) for key, array in self.page.constants.items()]
        graph = helper.make_graph(self.page.nodes, "offspike", inputs, outputs, constants)
        opsets = [helper.make_opsetid("", OPSET)]
        made = helper.make_model(graph, opset_imports=opsets, producer_name="offspike", producer_version=version())
        made.ir_version = 8  # the version that came with this opset
        content: bytes = made.SerializeToString()
        return content

    def _draw(self, part: Part) -> Expression:
        page, values = self.page, part.values
        if part.kind == "input":
            self.steady.add(part.name)
            return Expression(page, "x")
        x = self._sum(part)
        if part.kind in ("neurons", "output"):
            if part.name in self.steady:
                self.steady.discard(part.name)
                x = self._repeated(x)
            return self._neurons(part, x) if part.kind == "neurons" else self._output(part, x)
        if part.kind == "scale":
            return x * page.constant(_small(values["scale"]))
        if part.kind == "flatten":
            return page.add("Flatten", x, axis=1)
        if part.kind == "pool":
            pads = [*values["padding"], *values["padding"]]
            options = {"kernel_shape": values["kernel"], "strides": values["stride"], "pads": pads}
            return page.add("AveragePool", x, count_include_pad=1, **options)
        weight, bias = page.constant(values["weight"].numpy()), page.constant(values["bias"].numpy())
        if part.kind == "affine":
            return page.add("Gemm", x, weight, bias, transB=1)
        options = {"strides": values["stride"], "dilations": values["dilation"], "group": values["groups"]}
        return page.add("Conv", x, weight, bias, pads=[*values["padding"], *values["padding"]], **options)

    def _sum(self, part: Part) -> Expression:
        """What a part gets. Where image and spikes meet, the image is repeated."""
        still = [source in self.steady for source in part.sources]
        terms = [self.tensors[source] for source in part.sources]
        if all(still):
            self.steady.add(part.name)
        else:
            terms = [self._repeated(x) if s else x for x, s in zip(terms, still, strict=True)]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def _repeated(self, x: Expression) -> Expression:
        """``[B, …]`` to ``[T·B, …]``."""
        return self.page.add("Concat", *[x] * self.horizon, axis=0)

    def _neurons(self, part: Part, x: Expression) -> Expression:
        page, layer, size = self.page, part.values["layer"], int(np.prod(part.shape))
        split = page.add("Reshape", x, page.constant([self.horizon, -1, size], np.int64))
        currents = [page.add("Gather", split, page.constant(t, np.int64), axis=0) for t in range(self.horizon)]
        theta = page.constant(_small(part.values["theta"].flatten()))
        v0 = start(layer.policy, currents, theta, part.shape)
        if layer.start is not None:
            v0 = v0 + page.constant(_small(layer.start.detach().cpu().expand(part.shape).flatten()))
        axis = page.constant([0], np.int64)
        fired = [page.add("Unsqueeze", s, axis) for s in fire(layer.neuron, currents, theta, v0)]
        train = page.add("Concat", *fired, axis=0)
        self.watched[part.values["label"]] = train.name
        return page.add("Reshape", train.number(), page.constant([-1, *part.shape], np.int64))

    def _output(self, part: Part, x: Expression) -> Expression:
        page = self.page
        split = page.add("Reshape", x, page.constant([self.horizon, -1, *part.shape], np.int64))
        first, end, axis = (page.constant([value], np.int64) for value in (0, self.steps, 0))
        return page.add("Slice", split, first, end, axis, name="logits")


def _compare(snn: SpikingNetwork, unrolled: _Unrolled, x: Tensor, given: Tensor, steps: int) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(unrolled.model(watched=True), options, providers=["CPUExecutionProvider"])
    names = list(unrolled.watched)
    logits, *trains = session.run(["logits", *unrolled.watched.values()], {"x": given.cpu().numpy()})
    wanted = {name: train.cpu() for name, train in spikes(snn, x, unrolled.horizon).items()}
    got = {name: torch.from_numpy(train).reshape(wanted[name].shape) for name, train in zip(names, trains, strict=True)}
    differing(wanted, got)
    expected = snn(x, steps=steps).cpu()
    if not torch.allclose(torch.from_numpy(logits), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max())):
        raise ValueError("the file would not say the same: its logits differ from the network's by more than rounding")


def _small(values: Tensor) -> Any:
    """One number instead of an array of equal ones."""
    same = values.flatten()[:1]
    return same.numpy().reshape(()) if bool((values == same).all()) else values.numpy()


def _library(check: bool) -> Any:
    try:
        import onnx

        if check:
            import onnxruntime  # noqa: F401
    except ImportError as error:
        raise RuntimeError(f"ONNX files need onnx and onnxruntime: pip install 'offspike[export]' ({error})") from error
    return onnx
