"""NIR: the same spikes after the round trip, a file that means what it says, and refusals with the choices."""

import numpy as np
import pytest
import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from gallery import ACCEPTED

nir = pytest.importorskip("nir", reason="NIR tests need nir and h5py: pip install 'offspike[export]'")
pytest.importorskip("h5py", reason="NIR tests need nir and h5py: pip install 'offspike[export]'")

DRAWN = [
    "functional mlp", "mobilenet", "clamped", "signal", "batch norm after relu", "cifar resnet",
    "pre-activation resnet", "in-place hazard", "densenet", "shufflenet", "concatenated pools",
]  # fmt: skip


@pytest.fixture(autouse=True)
def read_here(request, monkeypatch):
    """Files are read by a process of their own; here that is done once, and otherwise left out to save time."""
    if "apart" not in request.keywords:
        monkeypatch.setattr(osp.exchange.hdf5, "read", lambda path: osp.exchange.hdf5.tree(str(path)))


def build(name, method=None):
    torch.manual_seed(0)
    make, shapes = ACCEPTED[name]
    x = dyadic_images(5, *shapes[0])
    ann = dyadic(osp.prepare(make().eval(), osp.QCFS(4), example=x))
    return osp.convert(ann, method or osp.methods.qcfs()), x


def same_spikes(a, b, x, steps=8):
    trains = [list(osp.exchange.nir.spikes(snn, x, steps).values()) for snn in (a, b)]
    assert all(int(train.sum()) for train in trains[0][:1]), "nothing fires"
    return all(map(torch.equal, *trains)) and torch.equal(a(x, steps), b(x, steps))


@pytest.mark.parametrize("name", DRAWN)
def test_round_trip(name, tmp_path):
    snn, x = build(name)
    osp.to_nir(snn, x, tmp_path / "snn.nir")
    assert same_spikes(snn, osp.from_nir(tmp_path / "snn.nir"), dyadic_images(7, *x.shape[1:], seed=1))


@pytest.mark.parametrize("variant", ["norse", "sinabs", "snntorch"])
@pytest.mark.parametrize("name", ["mobilenet", "wide bottleneck"])
def test_round_trip_in_other_words(name, variant, tmp_path):
    snn, x = build(name)
    osp.to_nir(snn, x, tmp_path / "snn.nir", variant=variant)
    assert same_spikes(snn, osp.from_nir(tmp_path / "snn.nir"), x)
    kinds = {type(node).__name__ for node in nir.read(tmp_path / "snn.nir").nodes.values()}
    assert not kinds & {"Scale", "AvgPool2d", "SumPool2d"}, "few simulators read these"


@pytest.mark.apart
def test_trained_networks_on_their_way_through_batch_norm(tmp_path):
    """Weights that are on no grid: θ is any number, BatchNorm is folded."""
    snn = osp.convert(osp.load("resnet20-cifar10-l4"), osp.methods.qcfs())
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * 4 - 2
    osp.to_nir(snn, x, tmp_path / "snn.nir", steps=4)
    loaded = osp.from_nir(tmp_path / "snn.nir")
    assert len(loaded.layers) == 19
    assert torch.allclose(loaded(x, 4), snn(x, 4), atol=1e-4)


def test_the_file_means_what_nir_and_its_metadata_say(tmp_path):
    """Read by the nir package and run by its own words: start at 0, fire at v_threshold, subtract theta."""
    snn, x = build("functional mlp")
    osp.to_nir(snn, x, tmp_path / "snn.nir")
    graph = nir.read(tmp_path / "snn.nir")  # with nir's own type check
    wanted = [train.numpy() for train in osp.exchange.nir.spikes(snn, x, 6).values()]
    state: dict = {}
    for t in range(6):
        sent = {"input": x.numpy()}
        found = []
        waiting = [name for name in graph.nodes if name != "input"]
        while waiting:
            name = next(n for n in waiting if all(a in sent for a, b in graph.edges if b == n))
            waiting.remove(name)
            got, node = sum(sent[a] for a, b in graph.edges if b == name), graph.nodes[name]
            if isinstance(node, nir.IF):
                u = state.get(name, 0) + got
                assert node.metadata["reset"] == "subtract theta"
                fires = u >= node.v_threshold
                state[name] = u - fires * node.metadata["theta"]
                found.append(fires)
                sent[name] = fires.astype(np.float32)
            elif isinstance(node, nir.Affine):
                sent[name] = got @ node.weight.T + node.bias
            elif isinstance(node, nir.Scale):
                sent[name] = got * node.scale
            else:
                sent[name] = got.reshape(len(got), -1) if isinstance(node, nir.Flatten) else got
        assert all((a == b[t]).all() for a, b in zip(found, wanted, strict=True))
        assert (sent["output"] == snn(x, 6)[t].numpy()).all()


@pytest.mark.parametrize("per", ["channel", "neuron"])
def test_static_starts_of_any_kind(per, tmp_path):
    snn, x = build("lenet", osp.methods.cos(rho=4))
    frozen = osp.freeze(snn, x, per=per)
    osp.to_nir(frozen, x, tmp_path / "snn.nir")
    assert same_spikes(frozen, osp.from_nir(tmp_path / "snn.nir"), x)


def test_corrections_and_thresholds_per_channel(tmp_path):
    torch.manual_seed(0)
    x = torch.rand(16, 1, 8, 8)
    ann = osp.prepare(ACCEPTED["lenet"][0]().eval(), osp.ReLU(), example=x)
    snn = osp.convert(ann, osp.methods.snnc(8, images=16), example=x, calibration=x)
    assert any(layer.shift is not None and layer.theta.numel() > 1 for layer in snn.layers.values())
    osp.to_nir(snn, x, tmp_path / "snn.nir")
    assert same_spikes(snn, osp.from_nir(tmp_path / "snn.nir"), x)


@pytest.mark.parametrize("method", [osp.methods.cos(4), osp.methods.exact(4), osp.methods.cos_light(4)])
def test_a_start_per_image_is_refused_with_the_choices(method, tmp_path):
    snn, x = build("functional mlp", method)
    with pytest.raises(ValueError, match="for each image") as caught:
        osp.to_nir(snn, x, tmp_path / "snn.nir")
    assert all(word in str(caught.value) for word in ("methods.qcfs()", "osp.freeze(snn, images)", "osp.to_onnx"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "said"), [("video", "conv1.*Conv3d"), ("decoder", "deconv.*ConvTranspose2d"), ("multi-head", "several")]
)
def test_what_has_no_words_is_named(name, said, tmp_path):
    snn, x = build(name)
    with pytest.raises(ValueError, match=said):
        osp.to_nir(snn, x, tmp_path / "snn.nir")
    assert not list(tmp_path.iterdir())


def test_other_refusals(tmp_path):
    snn, x = build("functional mlp")
    with pytest.raises(ValueError, match="variant must be one of nir, norse"):
        osp.to_nir(snn, x, tmp_path / "snn.nir", variant="brian")
    with pytest.raises(TypeError, match="takes a spiking network"):
        osp.to_nir(nn.Linear(2, 2), x, tmp_path / "snn.nir")
    with pytest.raises(OSError, match="cannot write"):
        osp.to_nir(snn, x, tmp_path / "no" / "folder.nir")
    signed = osp.convert(osp.zoo.small().eval(), osp.methods.snm(), calibration=torch.rand(4, 1, 8, 8))
    with pytest.raises(ValueError, match="sends negative spikes"):
        osp.to_nir(signed, torch.rand(1, 1, 8, 8), tmp_path / "snn.nir")


def test_a_file_that_would_not_say_the_same_is_not_written(tmp_path, monkeypatch):
    snn, x = build("functional mlp")
    read = osp.exchange.nir.from_nir

    def misread(path):
        other = read(path)
        next(iter(other.layers.values())).theta *= 2
        return other

    monkeypatch.setattr(osp.exchange.nir, "from_nir", misread)
    with pytest.raises(ValueError, match=r"would not say the same: .* spikes otherwise"):
        osp.to_nir(snn, x, tmp_path / "snn.nir")
    assert not list(tmp_path.iterdir())


def test_files_of_other_origin(tmp_path):
    one = np.ones(2, dtype=np.float32)
    neuron = nir.IF(one, one)
    nir.write(tmp_path / "if.nir", nir.NIRGraph.from_list(nir.Affine(np.eye(2, dtype=np.float32), one), neuron))
    with pytest.raises(ValueError, match=r"if is a IF that resets to v_reset, as NIR has it"):
        osp.from_nir(tmp_path / "if.nir")
    nir.write(tmp_path / "i.nir", nir.NIRGraph.from_list(nir.I(one)))
    with pytest.raises(ValueError, match="i is a I, which has no counterpart here"):
        osp.from_nir(tmp_path / "i.nir")


def test_freeze_is_the_mean_of_what_each_layer_chooses():
    snn, x = build("functional mlp", osp.methods.exact(4))
    frozen = osp.freeze(snn, x, per="neuron")
    first = next(iter(snn.layers.values()))
    current = snn.model.fc1(x.flatten(1)).expand(4, 5, -1)
    assert torch.allclose(next(iter(frozen.layers.values())).start, first.policy(current, first.theta).mean(0))
    assert next(iter(snn.layers.values())).start is None, "the network itself is not touched"
    assert frozen.method.rho == 0
    with pytest.raises(ValueError, match="nothing to freeze"):
        osp.freeze(frozen, x)
    with pytest.raises(ValueError, match="infinity"):
        osp.freeze(build("functional mlp", osp.methods.srp(4))[0], x)
    with pytest.raises(ValueError, match="per must be"):
        osp.freeze(snn, x, per="layer")


def test_what_is_done_to_the_image_is_no_layer(tmp_path):
    class Clamped(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.relu, self.head = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Linear(144, 3)

        def forward(self, x):
            return self.head(self.relu(self.conv(x.clamp(0, 1))).flatten(1))

    x = dyadic_images(2, 3, 8, 8)
    snn = osp.convert(osp.prepare(Clamped().eval(), osp.QCFS(4), example=x), osp.methods.qcfs())
    with pytest.raises(ValueError, match=r"conv .* If it is done to the image alone, do it before the network"):
        osp.to_nir(snn, x, tmp_path / "snn.nir")
    assert not list(tmp_path.iterdir())
