"""No kernel touches memory beside its operands or leaves a result unwritten: what compute-sanitizer looks for.

Every operand lies between bands of bytes 255 (NaN in any format): what is read from there shows in a result, what is
written there in a band. Where Triton's interpreter runs the kernels, every single address is looked at too. As a script
this file runs each case once, for ``compute-sanitizer python tests/test_guarded_kernels.py``.
"""

import importlib
import os
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from offspike import fused, ops
from offspike.fused import Drive, Product, Synapses
from offspike.initial import Exact, Shift
from offspike.ops import reference
from test_kernels import DEVICE, operands, phased, same, specified

BAND = 4096  # bytes

# An interpreter in numpy warns of ∞ − ∞ and of overflow, where PyTorch and GPUs are silent.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{what} encountered:RuntimeWarning") for what in ("invalid value", "overflow")
]

SIZES = [(1, 1), (1, 1025), (3, 7), (4, 1023), (11, 1025), (2, 2049)]  # steps, neurons; a block has up to 1024
# rule, steps, ρ, and what else is given
RULES = [
    ("exact-even", 1, 1, {}),
    ("exact-even", 4, 4, {}),
    ("exact-even", 13, 8, {}),
    ("exact-even", 9, 9, {}),  # more than stay in registers
    ("exact-first", 5, 4, {}),
    ("exact-middle", 1, 1, {}),
    ("shift-keep", 4, 4, {}),
    ("shift-pin", 12, 9, {}),
    ("residual", 1, 1, {}),
    ("exact-even", 4, 4, {"bias": 4, "inner": 1}),
    ("exact-even", 4, 4, {"bias": 5, "inner": 3, "unit": False}),
    ("shift-keep", 9, 4, {"beside": True, "bias": 5, "keep": False}),
    ("exact-even", 6, 4, {"steps": 6}),  # one current, held
]
# T, policy, outputs, stride, pooled, with a shortcut, v kept: a product in one run, and in several that hand v on
PRODUCTS = [
    (2, Exact(2), 8, 1, False, False, False),
    (9, Exact(4), 7, 2, False, True, True),
    (11, Shift(8), 17, 1, True, True, False),
]
MAPS = [(1, (2, 3, 1)), (2, (1, 5, 65)), (4, (3, 2, 7))]  # ρ; samples, neurons of a map, channels; a block has 64
POOLED = [("exact-even", 4, 4), ("exact-even", 1, 1), ("shift-keep", 11, 4), ("exact-near", 9, 9)]


class Bands:
    """Operands and results of one call, each between two bands."""

    def __init__(self, device, *, offset=0):
        self.device, self.offset, self.held = device, offset, []

    def around(self, x, *, result=False):
        """x in guarded memory; ``offset`` bytes more before it, so that it is not aligned."""
        start, size = BAND + self.offset, x.numel() * x.element_size()
        buffer = torch.full((2 * BAND + size + self.offset,), 255, dtype=torch.uint8, device=self.device)
        inside = buffer.as_strided((size,), (1,), start)
        if not result and size:
            inside.copy_(x.contiguous().flatten().view(torch.uint8))
        typed = inside.view(x.dtype) if size else x.new_empty(0)
        self.held.append((buffer, buffer.clone(), typed, result))
        return typed.view(x.shape)

    @contextmanager
    def allocating(self):
        """Results are made in guarded memory too."""
        real = torch.empty

        def empty(shape, *, dtype=torch.float32, device):
            return self.around(real(shape, dtype=dtype, device=device), result=True)

        torch.empty = empty
        try:
            yield
        finally:
            torch.empty = real

    def results(self):
        return {typed.data_ptr() for _, _, typed, result in self.held if result and typed.numel()}

    def intact(self):
        """Inputs are what they were; so is everything beside results."""
        return all(
            torch.equal(buffer[:BAND], before[:BAND])
            and torch.equal(buffer[-BAND:], before[-BAND:])
            and (result or torch.equal(buffer, before))
            for buffer, before, _, result in self.held
        )


class Watch:
    """Triton's memory, looked at: which addresses of which operands are read and written."""

    def __init__(self, real):
        self.real, self.inputs, self.results, self.written = real, [], [], []

    def __getattr__(self, name):
        return getattr(self.real, name)

    def load(self, addresses, mask, other, dtype):
        self._within(addresses[mask], np.dtype(dtype).itemsize, self.inputs)
        return self.real.load(addresses, mask, other, dtype)

    def store(self, addresses, value, mask):
        size = value.dtype.itemsize
        self._within(addresses[mask], size, self.results)
        assert not (addresses[mask] % size).any(), "a GPU writes to multiples of a number's size only"
        self.written.append((addresses[mask].ravel()[:, None] + np.arange(size, dtype=np.uint64)).ravel())
        return self.real.store(addresses, value, mask)

    def _within(self, addresses, size, spans):
        """Of a size of their own, or several of the operand's numbers at once."""
        known = np.zeros(addresses.shape, bool)
        for start, stop, width in spans:
            known |= (addresses >= start) & (addresses + np.uint64(size) <= stop) & (size % width == 0)
        assert known.all(), f"{(~known).sum()} addresses lie outside of every operand"

    def begin(self, tensors, results):
        spans = [(x.data_ptr(), x.data_ptr() + x.numel() * x.element_size(), x.element_size(), x) for x in tensors]
        self.inputs = [span[:3] for span in spans if span[0] not in results]
        self.results, self.written = [span[:3] for span in spans if span[0] in results], []

    def end(self):
        """Every byte of every result was written, once."""
        wanted = [np.arange(start, stop, dtype=np.uint64) for start, stop, _ in self.results]
        assert np.array_equal(np.sort(np.concatenate(self.written)), np.sort(np.concatenate(wanted)))


@pytest.fixture(scope="module")
def gpu():
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE == "cpu":
            patch.setenv("TRITON_INTERPRET", "1")
        pytest.importorskip("triton")
        yield importlib.import_module("offspike.ops.gpu")


@pytest.fixture
def watched(gpu, monkeypatch):
    """Bands, and a look at each address where the interpreter runs."""
    bands = Bands(DEVICE)
    if DEVICE == "cpu":
        conv = importlib.import_module("offspike.ops.conv")
        interpreter = importlib.import_module("triton.runtime.interpreter")
        watch, real, convolve = Watch(interpreter._interpreter), gpu._launch, conv._launch

        def launch(kernel, size, *given, **options):
            watch.begin([x for x in given if isinstance(x, torch.Tensor) and x.numel()], bands.results())
            real(kernel, size, *given, **options)
            watch.end()

        def launch_product(*given, **options):
            # Results of this run stand last; the potentials that it starts from are a result of the run before.
            watch.begin([x for x in given if x is not None], {x.data_ptr() for x in given[-2:] if x is not None})
            convolve(*given, **options)
            watch.end()

        monkeypatch.setattr(interpreter, "_interpreter", watch)
        monkeypatch.setattr(gpu, "_launch", launch)
        monkeypatch.setattr(conv, "_launch", launch_product)
    return bands


def run_neuron(gpu, bands, name, steps, neurons, dtype):
    current, pairs = operands(steps, neurons, dtype, DEVICE)
    for theta, v0 in pairs:
        given = [bands.around(x) for x in (current, theta, v0)]
        with bands.allocating():
            got = getattr(gpu, name)(*given)
        yield got, getattr(reference, name)(current, theta, v0)


def run_carry(gpu, bands, rho, shape, dtype):
    current, pairs = operands(rho, shape[0] * shape[1] * shape[2], dtype, DEVICE)
    phase = torch.rand(shape[1:], generator=torch.Generator().manual_seed(3)).to(DEVICE, pairs[0][0].dtype)
    for theta, _ in pairs:
        given = (current.view(rho, *shape), theta, phase)
        guarded = [bands.around(x) for x in given]
        with bands.allocating():
            got = gpu.carry(*guarded, 2.0**-10)
        yield [got], [reference.carry(*given, 2.0**-10)]


def run_rule(gpu, bands, rule, rho, current, theta, options):
    sample = 2 * options["width"] * options["pool"] if "pool" in options else 7  # neurons with phases of their own
    options = options | phased(rule, DEVICE, of=sample)
    guarded = {key: bands.around(x) if isinstance(x, torch.Tensor) else x for key, x in options.items()}
    given = (bands.around(current), bands.around(theta), rule, rho, 1, 1e-3)
    with bands.allocating():
        got = gpu.calibrate_and_fire(*given, **guarded)
    return got, specified(current, theta, rule, rho, 1, 1e-3, **options)


def extras(more, steps, neurons, dtype):
    """The tensors that a case asks for."""
    draw, found = torch.Generator().manual_seed(7), dict(more)
    if found.pop("beside", False):
        found["beside"] = torch.randn(steps, neurons, generator=draw).to(DEVICE, dtype)
        found["gain"] = torch.rand(1, generator=draw).to(DEVICE) + 0.3
    if "bias" in found:
        found["bias"] = torch.rand(found["bias"], generator=draw).to(DEVICE)
    return found


def rule_cases(gpu, bands, neurons):
    for rule, steps, rho, more in RULES:
        current, pairs = operands(steps, neurons, torch.bfloat16, DEVICE)
        theta = ((pairs[len(more) % 2][0]) * 16).round() / 16  # θ·s fits bfloat16
        given = current[:1] if "steps" in more else current
        yield rule, run_rule(gpu, bands, rule, rho, given, theta, extras(more, steps, neurons, torch.bfloat16))


def pooled_cases(gpu, bands, width, channels):
    neurons = 6 * width * channels
    for rule, steps, rho in POOLED:
        current, pairs = operands(steps, neurons, torch.bfloat16, DEVICE)
        options = extras({"bias": channels, "pool": channels, "width": width, "keep": False}, steps, neurons, None)
        yield rule, run_rule(gpu, bands, rule, rho, current, pairs[0][0], options)


def run_product(bands, steps, policy, outputs, stride, pool, shortcut, keep):
    draw = torch.Generator().manual_seed(steps)
    spikes = torch.randint(0, 2, (steps, 2, 4, 6, 9), generator=draw).to(DEVICE, torch.int8)
    weight = torch.randint(-128, 128, (2, outputs, 3, 3, 9), generator=draw).to(DEVICE, torch.int8)
    scale, theta = torch.full((outputs,), 2.0**-8, device=DEVICE), torch.ones(1, device=DEVICE)
    more = {"bias": torch.rand(outputs, generator=draw).to(DEVICE)}
    if shortcut:
        beside = torch.randint(0, 2, (steps, 2, 4 // stride, 6 // stride, outputs), generator=draw)
        more |= {"beside": beside.to(DEVICE, torch.int8), "gain": torch.full((1,), 0.5, device=DEVICE)}
    guarded = {name: bands.around(x) for name, x in more.items()}
    if shortcut:
        guarded["beside"], more["beside"] = (x["beside"].permute(0, 1, 4, 2, 3) for x in (guarded, more))
    synapses = Synapses(bands.around(weight), bands.around(scale), stride)
    seen, aside = bands.around(spikes).permute(0, 1, 4, 2, 3), guarded.pop("beside", None)

    def run(steps, **options):
        beside = None if aside is None else aside[steps]
        product = Product(seen[steps], synapses, pool=pool, beside=beside, **guarded)
        return fused.run(product, bands.around(theta), **options)

    with bands.allocating():
        if keep:  # in two pieces
            first, between = run(slice(policy.rho), policy=policy, keep=True)
            rest, v_end = run(slice(policy.rho, None), v0=between, keep=True)
            got = torch.cat([first, rest])
        else:
            got, v_end = run(slice(None), policy=policy)
    current = reference.convolve(spikes, weight, scale, stride=stride).permute(0, 1, 4, 2, 3)
    drive = Drive(current, steps, **more | {"bias": more["bias"].view(-1, 1, 1)}, unit=True)
    wanted, v = fused.run(drive, theta, policy=policy, keep=True)
    if pool:
        wanted = wanted.unflatten(4, (-1, 2)).unflatten(3, (-1, 2)).sum((4, 6))
    return (got.float(), v_end if keep else v), (wanted, v)


@pytest.mark.parametrize("name", ["fire", "probe"])
@pytest.mark.parametrize(("steps", "neurons"), SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_neurons_stay_within_their_operands(gpu, watched, name, steps, neurons, dtype):
    for got, wanted in run_neuron(gpu, watched, name, steps, neurons, dtype):
        assert same(got, wanted)
    assert watched.intact()


@pytest.mark.parametrize("neurons", [1, 7, 1025])
def test_rules_stay_within_their_operands(gpu, watched, neurons):
    for rule, (got, wanted) in rule_cases(gpu, watched, neurons):
        assert same(got, wanted), rule
    assert watched.intact()


@pytest.mark.parametrize(("rho", "shape"), MAPS, ids=str)
def test_maps_stay_within_their_operands(gpu, watched, rho, shape):
    for got, wanted in run_carry(gpu, watched, rho, shape, torch.float32):
        assert same(got, wanted)
    assert watched.intact()


@pytest.mark.parametrize(("width", "channels"), [(2, 1), (6, 5), (4, 64)])
def test_pooled_spikes_stay_within_their_operands(gpu, watched, width, channels):
    for rule, (got, wanted) in pooled_cases(gpu, watched, width, channels):
        assert same(got, wanted), rule
    assert watched.intact()


@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: f"{case[0]}-steps")
def test_products_stay_within_their_operands(watched, case):
    got, wanted = run_product(watched, *case)
    assert same(got, wanted)
    assert watched.intact()


def test_operands_that_are_not_aligned(gpu, watched):
    watched.offset = 8
    for rule, (got, wanted) in rule_cases(gpu, watched, 1025):
        assert same(got, wanted), rule
    assert watched.intact()


def test_currents_that_are_not_contiguous(gpu):
    wide, _ = operands(4, 2 * 1025, torch.float32, DEVICE)
    for current in (wide[:, ::2], wide.T[:4].T, wide.flip(0)):
        theta, v0 = torch.ones(1, device=DEVICE), torch.full((1,), 0.5, device=DEVICE)
        assert same(gpu.fire(current, theta, v0), reference.fire(current.contiguous(), theta, v0))
        assert same(gpu.probe(current, theta, v0), reference.probe(current.contiguous(), theta, v0))


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU shows no addresses")
@pytest.mark.parametrize("place", [8, 9, 10], ids=["v0", "v_end", "out"])
def test_the_watch_sees_a_product_that_goes_too_far(watched, place, monkeypatch):
    conv = importlib.import_module("offspike.ops.conv")
    launch = conv._launch

    def wrong(*given, **options):
        less = None if given[place] is None else given[place].flatten()[:-1]  # the kernel takes it for the whole
        launch(*given[:place], less, *given[place + 1 :], **options)

    monkeypatch.setattr(conv, "_launch", wrong)
    with pytest.raises(Exception, match="outside of every operand"):
        run_product(watched, *next(case for case in PRODUCTS if case[-1]))


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU shows no addresses")
@pytest.mark.parametrize("fault", ["neurons", "outputs"])
def test_the_watch_sees_a_kernel_that_goes_too_far(gpu, watched, fault, monkeypatch):
    launch, place = gpu._launch, {"neurons": 10, "outputs": 11}[fault]

    def wrong(kernel, size, *given, **options):
        launch(kernel, size, *(value + 1 if at == place else value for at, value in enumerate(given)), **options)

    monkeypatch.setattr(gpu, "_launch", wrong)
    current, pairs = operands(4, 7, torch.float32, DEVICE)
    with pytest.raises(Exception, match="outside of every operand"):
        run_rule(gpu, watched, "exact-even", 2, current, pairs[0][0], {})


def main():
    """Each case once, on the GPU."""
    assert ops.backend(DEVICE) == "triton", "this needs a GPU and Triton"
    module, bands = importlib.import_module("offspike.ops.gpu"), Bands(DEVICE)
    for steps, neurons in SIZES:
        for name in ("fire", "probe"):
            assert all(same(*pair) for pair in run_neuron(module, bands, name, steps, neurons, torch.float32))
    assert all(same(*pair) for _, pair in rule_cases(module, bands, 1025))
    assert all(same(*pair) for _, pair in pooled_cases(module, bands, 6, 5))
    for rho, shape in MAPS:
        assert all(same(*pair) for pair in run_carry(module, bands, rho, shape, torch.float32))
    assert all(same(*run_product(bands, *case)) for case in PRODUCTS)
    assert bands.intact()


if __name__ == "__main__":
    os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")  # each tensor its own: beside it nothing is mapped
    main()
