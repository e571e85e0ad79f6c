"""Every kernel returns the specification's bits: odd sizes, every format, poisoned memory, rounding included.

Triton's kernels run on a GPU where there is one, and through Triton's interpreter elsewhere.
"""

import importlib
import math

import numpy as np
import pytest
import torch

from offspike import fused, ops
from offspike.ops import memory, reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RULES = ["residual", "shift-keep", "shift-pin", "exact-first", "exact-middle", "exact-near", "exact-even"]

# An interpreter in numpy warns of ∞ − ∞ and of overflow, where PyTorch and GPUs are silent.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{what} encountered:RuntimeWarning") for what in ("invalid value", "overflow")
]

each_dtype = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=["f32", "f64", "bf16", "f16"]
)
each_rule = pytest.mark.parametrize("rule", RULES)
each_size = pytest.mark.parametrize(
    ("steps", "neurons"),
    [(1, 1), (2, 2), (5, 3), (4, 127), (2, 512), (3, 1023), (8, 1025), (16, 4097), (3, 8193), (4, 0)],
    ids=lambda n: str(n),
)


@pytest.fixture(scope="module", params=["numba", "triton"])
def kernels(request):
    """The kernel module and the device it runs on."""
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE == "cpu":
            patch.setenv("TRITON_INTERPRET", "1")
        pytest.importorskip(request.param)
        name, device = {"numba": ("cpu", "cpu"), "triton": ("gpu", DEVICE)}[request.param]
        yield importlib.import_module(f"offspike.ops.{name}"), device


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Memory that nobody wrote shows as NaN."""
    real = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, **options: real(*args, **options).fill_(math.nan))


def operands(steps, neurons, dtype, device, *, seed=0):
    """Currents, a threshold for all and one for each, a start for all and one for each; nothing dyadic."""
    draw = torch.Generator().manual_seed(seed)
    state = torch.float64 if dtype == torch.float64 else torch.float32
    current = torch.randn(steps, neurons, generator=draw, dtype=torch.float64) * 0.7 + 0.3
    theta, v0 = torch.rand(2, neurons, generator=draw, dtype=torch.float64) + torch.tensor([[0.5], [-0.3]])
    pairs = [(theta[:1], v0), (theta, v0[:1])] if neurons else [(torch.ones(1), torch.zeros(1))]
    return current.to(device, dtype), [tuple(x.to(device, state) for x in pair) for pair in pairs]


def phased(rule, device, *, of=7):
    """Phases for the rule that needs them, of a sample of so many neurons."""
    phase = torch.rand(of, generator=torch.Generator().manual_seed(3)).to(device)
    return {"phase": phase} if rule == "exact-even" else {}


def same(got, wanted):
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(got, wanted, strict=True))


def specified(current, theta, *arguments, **options):
    """Policy, then neuron, with every kernel switched off."""
    device = current.device.type
    with ops._fire.set_kernel_enabled(device, False), ops._probe.set_kernel_enabled(device, False):
        return fused.specification(current, theta, *arguments, **options)


@each_dtype
@each_size
def test_fire(kernels, steps, neurons, dtype):
    module, device = kernels
    current, pairs = operands(steps, neurons, dtype, device)
    for theta, v0 in pairs:
        assert same(module.fire(current, theta, v0), reference.fire(current, theta, v0))


@each_dtype
@each_size
def test_fire_signed(steps, neurons, dtype):
    module = importlib.import_module("offspike.ops.cpu")  # a GPU runs the specification
    current, pairs = operands(steps, neurons, dtype, "cpu")
    for theta, v0 in pairs:
        assert same(module.fire_signed(current - 0.3, theta, v0), reference.fire_signed(current - 0.3, theta, v0))


@each_dtype
@each_size
def test_probe(kernels, steps, neurons, dtype):
    module, device = kernels
    current, pairs = operands(steps, neurons, dtype, device)
    for theta, v0 in pairs:
        assert same(module.probe(current, theta, v0), reference.probe(current, theta, v0))


@each_dtype
@pytest.mark.parametrize(
    ("rho", "shape"), [(1, (2, 3, 1)), (2, (1, 6, 5)), (4, (3, 1, 65)), (3, (2, 7, 16)), (9, (1, 4, 3)), (4, (0, 2, 2))]
)
def test_carry(kernels, rho, shape, dtype):
    module, device = kernels
    current, pairs = operands(rho, math.prod(shape), dtype, device)
    phase = torch.rand(shape[1:], generator=torch.Generator().manual_seed(3)).to(device, pairs[0][0].dtype)
    for theta, _ in pairs:
        given = current.view(rho, *shape), theta, phase, 2.0**-10
        assert same([module.carry(*given)], [reference.carry(*given)])


@each_rule
@each_dtype
@pytest.mark.parametrize(("steps", "rho"), [(1, 1), (5, 1), (6, 2), (3, 3), (7, 5), (9, 8)], ids=lambda n: str(n))
def test_calibrate_and_fire(kernels, steps, rho, dtype, rule):
    module, device = kernels
    current, pairs = operands(steps, 515, dtype, device)
    for (theta, _), iterations in zip(pairs, (1, 3), strict=True):
        arguments = (rule, rho, iterations, 1e-3)
        extra = phased(rule, device)
        got = module.calibrate_and_fire(current, theta, *arguments, **extra)
        assert same(got, specified(current, theta, *arguments, **extra))


@each_rule
@pytest.mark.parametrize("neurons", [1, 8193])
def test_calibrate_and_fire_one_neuron_and_many_blocks(kernels, neurons, rule):
    module, device = kernels
    current, pairs = operands(4, neurons, torch.float32, device)
    for theta, _ in pairs:
        arguments, extra = (rule, 3, 1, 1e-3), phased(rule, device, of=5000)
        got = module.calibrate_and_fire(current, theta, *arguments, **extra)
        assert same(got, specified(current, theta, *arguments, **extra))


def drives(steps, neurons, dtype, device, state):
    """Everything that may come with a current, alone and together; a held current is one step long."""
    draw = torch.Generator().manual_seed(7)
    extra = (torch.randn(steps, neurons, generator=draw) * 0.4).to(device, dtype)
    gain, bias = (torch.rand(n, generator=draw).to(device, state) + 0.3 for n in (1, 5))
    start = torch.rand(neurons, generator=draw).to(device, state)
    yield {"bias": bias, "inner": 1}
    yield {"bias": bias, "inner": 3, "unit": False}
    yield {"beside": extra, "gain": gain, "keep": False}
    yield {"beside": extra, "gain": gain, "bias": bias, "inner": 2, "dtype": torch.float32, "v0": start}
    narrow = torch.bfloat16 if state == torch.float32 else torch.float32  # the interpreter cannot jump from float64
    yield {"unit": False, "dtype": narrow, "v0": start[:1]}
    yield {"steps": steps + 3, "bias": bias}
    yield {"steps": steps, "unit": False, "keep": False}
    yield {"steps": steps, "beside": extra[:1], "gain": gain, "bias": bias}  # all that drives them stays the same
    yield {"bias": bias, "pool": 5, "width": 6, "keep": False}
    yield {"steps": steps, "bias": bias, "pool": 5, "width": 6, "v0": start}


@each_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=["f32", "bf16", "f64"])
@pytest.mark.parametrize(("steps", "rho"), [(4, 1), (14, 4), (12, 9)], ids=lambda n: str(n))
def test_currents_made_on_the_way(kernels, steps, rho, dtype, rule):
    """A shortcut, a bias, a current that is held, a start that is given, pooled spikes: as specified."""
    module, device = kernels
    neurons = 16 * 6 * 5  # rows of 6 places with 5 channels
    current, ((theta, _), _) = operands(steps, neurons, dtype, device)
    theta = (theta * 16).round() / 16  # θ·s fits bfloat16: Triton's interpreter cuts off where a GPU rounds
    for options in drives(steps, neurons, dtype, device, theta.dtype):
        options |= phased(rule, device, of=120)
        given = current[:1] if "steps" in options else current
        arguments = ("given" if "v0" in options else rule, rho, 1, 1e-3)
        got = module.calibrate_and_fire(given, theta, *arguments, **options)
        assert same(got, specified(given, theta, *arguments, **options)), options


# channels of eights and others, windows of one sample and of several in a block, a channel count beyond a block
@pytest.mark.parametrize(
    ("channels", "width", "rows", "sample_rows"), [(24, 4, 64, 4), (7, 10, 44, 44), (520, 2, 4, 2), (8, 32, 18, 18)]
)
@pytest.mark.parametrize(("rule", "steps", "rho"), [("exact-even", 4, 4), ("exact-even", 13, 4), ("shift-keep", 12, 9)])
def test_pooled_spikes_of_many_blocks(kernels, channels, width, rows, sample_rows, rule, steps, rho):
    module, device = kernels
    current, pairs = operands(steps, rows * width * channels, torch.bfloat16, device)
    bias = torch.rand(channels, generator=torch.Generator().manual_seed(5)).to(device)
    options = {"pool": channels, "width": width, "bias": bias} | phased(rule, device, of=sample_rows * width * channels)
    for theta, _ in pairs:
        given = current, theta, rule, rho, 1, 1e-3
        assert same(module.calibrate_and_fire(*given, **options), specified(*given, **options))


def test_spikes_of_other_heights_are_not_pooled(kernels):
    module, device = kernels
    if module.__name__.endswith("cpu"):
        pytest.skip("the CPU pools any")
    current, ((theta, v0), _) = operands(1, 4, torch.float32, device)
    with pytest.raises(ValueError, match="unit=True"):
        module.calibrate_and_fire(current, theta, "given", 0, 1, 0.0, v0, unit=False, pool=1, width=2)


@each_rule
def test_calibrate_and_fire_without_neurons(kernels, rule):
    module, device = kernels
    spikes, v_end = module.calibrate_and_fire(
        torch.zeros(4, 0, device=device), torch.ones(1, device=device), rule, 2, 1, 0.1, **phased(rule, device)
    )
    assert spikes.shape == (4, 0)
    assert v_end.shape == (0,)


@each_rule
@pytest.mark.parametrize("steps", [1, 4])
def test_ties_go_the_same_way(kernels, steps, rule):
    """On a grid of θ/2 the potential meets θ, and ΣI/θ + ½ an integer, all the time."""
    module, device = kernels
    current = torch.randint(-2, 4, (steps, 600), generator=torch.Generator().manual_seed(0)).to(device) / 2
    theta = torch.ones(1, device=device)
    arguments, extra = (rule, steps, 2, 2.0**-10), phased(rule, device)
    assert same(
        module.calibrate_and_fire(current, theta, *arguments, **extra), specified(current, theta, *arguments, **extra)
    )


@pytest.mark.parametrize("name", ["fire", "probe"])
def test_the_ends_of_the_number_line(kernels, name):
    module, device = kernels
    odd = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, math.inf, -math.inf, math.nan, 1.0], device=device)
    current = torch.cartesian_prod(odd, odd, odd).T.contiguous()
    theta, v0 = torch.ones(1, device=device), torch.full((1,), 0.5, device=device)
    got, wanted = getattr(module, name)(current, theta, v0), getattr(reference, name)(current, theta, v0)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("theta", [1.0, 0.1, 1 / 3, 2.7182817, 1e-3, 317.7])
def test_counts_where_rounding_decides(kernels, theta):
    """Sums a few ulps around (k ± ½)θ: a quotient rounded otherwise would give another count."""
    module, device = kernels
    theta = torch.tensor([theta], device=device)
    edges = (torch.arange(-1, 6, device=device) + 0.5) * theta
    places = [edges, *(edges.clone() for _ in range(4))]
    for _ in range(3):
        places[1:3] = [torch.nextafter(places[1], edges + 1), torch.nextafter(places[2], edges - 1)]
        places += places[1:3]
    total = torch.cat([*places, torch.linspace(-1, 5, 4001, device=device) * theta])
    current = torch.stack([total, torch.zeros_like(total), torch.zeros_like(total), torch.zeros_like(total)])
    for rule in ("exact-middle", "shift-keep"):
        assert same(
            module.calibrate_and_fire(current, theta, rule, 4, 1, 1e-3), specified(current, theta, rule, 4, 1, 1e-3)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("rule", ["shift-keep", "shift-pin"])
def test_shifts_where_rounding_decides(kernels, rule, dtype):
    """What a neuron has gained is a few ulps around ±θ/2, for thresholds of many mantissas."""
    module, device = kernels
    draw = torch.Generator().manual_seed(0)
    theta = torch.cat([torch.rand(400, generator=draw, dtype=dtype) + 1, torch.ones(20, dtype=dtype)])
    theta[-20:] += torch.arange(-10, 10, dtype=dtype) * torch.finfo(dtype).eps
    theta = (theta * 2.0 ** torch.randint(-9, 9, theta.shape, generator=draw)).to(device).repeat(10)
    current = torch.cat([theta / 2, theta / -2])
    for row in current.view(2, 10, -1):
        for ulps in range(10):
            for _ in range(abs(ulps - 5)):
                row[ulps] = torch.nextafter(row[ulps], torch.full_like(row[ulps], ulps - 5))
    current, theta = torch.stack([current, current.flip(0), current * 0]), theta.repeat(2)
    for rho in (1, 2):
        for one in (theta, theta[7:8]):
            given = current, one, rule, rho, 2, 1e-3
            assert same(module.calibrate_and_fire(*given), specified(*given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_the_least_that_is_rounded_up(kernels, dtype):
    """``half_up`` is where ⌊a/b + ½⌋ becomes 1, found by trying its neighbours; for b of many mantissas."""
    module, device = kernels
    if module.__name__.endswith("cpu"):
        pytest.skip("the CPU divides")
    import triton
    import triton.language as tl

    from offspike.ops import device as on_device

    @triton.jit
    def kernel(b, out, function: tl.constexpr, N: tl.constexpr):
        i = tl.arange(0, N)
        tl.store(out + i, function(tl.load(b + i)))

    b = torch.rand(4096, generator=torch.Generator().manual_seed(0), dtype=dtype) + 1
    near = torch.arange(-8, 8, dtype=dtype) * torch.finfo(dtype).eps
    b[:48] = torch.cat([4 / 3 + near, 1 + near.abs(), 2 + near * 2])
    b = (b * 2.0 ** torch.randint(-9, 9, b.shape, generator=torch.Generator().manual_seed(1))).to(device)
    least = torch.empty_like(b)
    kernel[(1,)](b, least, on_device.half_up, N=len(b))
    before = torch.nextafter(least, -least)
    assert (torch.floor(least / b + 0.5) == 1).all()
    assert (torch.floor(before / b + 0.5) == 0).all()
    assert 0.2 < (least < b / 2).double().mean() < 0.8  # both cases come


def test_neurons_do_not_mix(kernels):
    """A silent neuron beside each loud one stays silent."""
    module, device = kernels
    current = torch.tensor([0.0, 5.0], device=device).repeat(3, 2049)
    spikes, v_end = module.fire(current, torch.ones(1, device=device), torch.zeros(1, device=device))
    assert torch.equal(spikes, (current > 0).float())
    assert torch.equal(v_end, 12 * spikes[0])


@pytest.mark.parametrize("rho", [32, 33, 40])
def test_long_listening(kernels, rho):
    """Beyond the table that fits a GPU's registers too."""
    module, device = kernels
    current, ((theta, _), _) = operands(rho, 70, torch.float32, device)
    run = fused._on_gpu if module.__name__.endswith("gpu") else fused._on_cpu
    for arguments in [("exact-first", rho, 1, 1e-3), ("exact-even", rho, 1, 1e-3), ("shift-keep", rho, 2, 1e-3)]:
        extra = phased(arguments[0], device)
        assert same(run(current, theta, *arguments, **extra), specified(current, theta, *arguments, **extra))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs 10 GB on a GPU")
def test_more_than_two_to_the_31_elements(kernels):
    module, device = kernels
    if device == "cpu":
        pytest.skip("numpy's indices have 64 bits")
    neurons = 2**30 + 7
    current = torch.zeros(3, neurons, dtype=torch.bfloat16, device=device)
    current[2, -5:] = 1.0
    spikes, _ = module.fire(current, torch.ones(1, device=device), torch.zeros(1, device=device))
    assert torch.equal(spikes, current)


# Memory that is used again


def test_memory_in_use_is_left_alone(monkeypatch):
    monkeypatch.setattr(memory, "LARGE", 1)
    held = memory.empty((3, 5), torch.float32).fill_(7.0)
    part = held[1]
    del held
    memory.empty((3, 5), torch.float32).fill_(8.0)
    assert part.tolist() == [7.0] * 5


def test_memory_is_used_again_and_what_it_held_is_gone(monkeypatch):
    monkeypatch.setattr(memory, "LARGE", 1)
    current, ((theta, v0), _) = operands(3, 1025, torch.float32, "cpu")
    memory._spare[:] = [np.full(current.nbytes, 255, np.uint8)]  # NaN everywhere
    address = memory._spare[0].ctypes.data
    for _ in range(2):
        spikes, _ = ops.fire(current, theta, v0)
        assert spikes.data_ptr() == address
        assert torch.equal(spikes, reference.fire(current, theta, v0)[0])
        del spikes


def test_a_small_tensor_does_not_hold_large_memory(monkeypatch):
    monkeypatch.setattr(memory, "LARGE", 1)
    memory._spare[:] = [np.empty(1000, np.uint8)]
    assert memory.empty((100,), torch.float32).untyped_storage().nbytes() == 400
    assert [spare.size for spare in memory._spare] in ([1000], [1000, 400])


def test_little_memory_is_kept(monkeypatch):
    monkeypatch.setattr(memory, "LARGE", 1)
    memory._spare.clear()
    held = [memory.empty((size,), torch.float32) for size in (10, 20, 30, 40, 50)]
    held.clear()
    assert len(memory._spare) == memory.KEPT
