"""evaluate against the same figures computed one image and one t at a time."""

import numpy as np
import pytest
import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images


@pytest.fixture
def setting():
    layers = [nn.Linear(6, 16), osp.QCFS(4), nn.Linear(16, 16), osp.QCFS(4), nn.Linear(16, 3)]
    ann = dyadic(nn.Sequential(*layers))
    x = dyadic_images(11, 6)
    return ann, x, torch.arange(11) % 3


def batches(x, y, size):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


@pytest.mark.parametrize("schedule", ["layerwise", "causal"])
def test_every_t_in_one_pass(setting, schedule):
    ann, x, y = setting
    snn = osp.convert(ann, osp.methods.cos(4, schedule=schedule))
    report = osp.evaluate(snn, batches(x, y, 4), steps=6, reference=ann)
    for t in range(1, 7):
        answers = torch.cat([snn(image[None], t).mean(0).argmax(-1) for image in x])
        assert report.accuracy[t - 1] == (answers == y).double().mean().item()
        assert report.agreement[t - 1] == (answers == ann(x).argmax(-1)).double().mean().item()
    assert report.reference_accuracy == (ann(x).argmax(-1) == y).double().mean().item()


def test_spikes_are_counted_where_they_are_sent(setting):
    ann, x, y = setting
    snn = osp.convert(ann, osp.methods.qcfs())
    parts = {name: [] for name in snn.layers}  # a batch may be run in several
    for name, layer in snn.layers.items():
        layer.register_forward_hook(lambda m, a, out, name=name: parts[name].append((out > 0).reshape(5, -1, 16)))
    report = osp.evaluate(snn, [(x, y)], steps=5)
    sent = {name: torch.cat(spikes, 1) for name, spikes in parts.items()}
    for name, spikes in sent.items():
        assert spikes.shape == (5, 11, 16)
        assert report.layers[name].spikes.tolist() == spikes.sum((1, 2)).tolist()
        assert np.array_equal(report.rates[name], spikes.sum((1, 2)).numpy() / (11 * 16))
    assert report.spikes(3) == sum(int(s[:3].sum()) for s in sent.values()) / 11


def test_below_rho_all_rho_steps_are_paid_for(setting):
    ann, x, y = setting
    snn = osp.convert(ann, osp.methods.exact(4))
    report = osp.evaluate(snn, [(x, y)], steps=2)
    assert report.spikes(1) == report.spikes(2) == osp.evaluate(snn, [(x, y)], steps=4).spikes(4)


def test_the_causal_schedule_pays_for_listening(setting):
    ann, x, y = setting
    causal = osp.evaluate(osp.convert(ann, osp.methods.cos(4, schedule="causal")), [(x, y)], steps=3)
    listening = osp.evaluate(osp.convert(ann, osp.methods.qcfs()), [(x, y)], steps=4)
    talking = sum(int(a.spikes.sum()) for a in causal.layers.values()) / 11
    assert causal.spikes(3) == pytest.approx(listening.spikes(4) + talking)


def test_two_shards_add_up_to_the_whole(setting, tmp_path):
    ann, x, y = setting
    snn = osp.convert(ann, osp.methods.exact(4))
    run = lambda a, b: osp.evaluate(snn, [(x[a:b], y[a:b])], steps=5, reference=ann)  # noqa: E731
    whole, sum_of_parts = run(0, 11), run(0, 4) + run(4, 11)
    assert whole.to_dict() == sum_of_parts.to_dict()
    whole.to_json(tmp_path / "report.json")
    assert osp.Report.from_json(tmp_path / "report.json").to_dict() == whole.to_dict()


def test_progress_is_told(setting):
    ann, x, y = setting
    done = []
    osp.evaluate(osp.convert(ann, osp.methods.qcfs()), batches(x, y, 4), steps=2, progress=done.append)
    assert done == [4, 4, 3]


def test_an_empty_loader_is_refused(setting):
    ann, _, _ = setting
    with pytest.raises(ValueError, match="the data loader is empty"):
        osp.evaluate(osp.convert(ann, osp.methods.qcfs()), [], steps=2)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 99}', "\x00\xff"])
def test_damaged_reports_are_refused(tmp_path, text):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"not an offspike report|format 99"):
        osp.Report.from_json(path)


def test_a_missing_report_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        osp.Report.from_json(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x, y: {"image": x, "label": y}, TypeError, r"a dict with 'image', 'label': give \(\(batch\['image'\]"),
        (lambda x, y: (x, y, x), TypeError, r"got a tuple of 3: give \(\(batch\[0\], batch\[1\]\) for batch in loader"),
        (lambda x, y: x[:2], TypeError, r"pairs \(x, labels\), got a Tensor"),
        (lambda x, y: (x.numpy(), y), TypeError, "must be a tensor, got ndarray"),
        (lambda x, y: (x, y[:, None]), ValueError, r"class numbers \[B\], here \[11\], got \[11, 1\]: .*flatten"),
        (lambda x, y: (x, y[:1]), ValueError, r"here \[11\], got \[1\]"),
        (lambda x, y: (x, torch.eye(3)[y]), ValueError, r"got \[11, 3\]: labels.argmax\(1\)"),
        (lambda x, y: (x, ["cat"] * 11), TypeError, r"class numbers \[B\], got a list; .*metric="),
        (lambda x, y: (x[0], y[0]), ValueError, "a data set without batches"),
    ],
)
@pytest.mark.parametrize("steps", [1, 11])  # with T = 1 or T = B a column of labels would be compared crosswise
def test_what_is_no_batch_is_refused(setting, change, error, message, steps):
    ann, x, y = setting
    snn = osp.convert(ann, osp.methods.qcfs())
    with pytest.raises(error, match=message):
        osp.evaluate(snn, [change(x, y)], steps=steps)
    with pytest.raises(error, match=message):
        osp.early_exit(snn, [change(x, y)], steps=steps, margins=[0.0])


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, torch.float32, "list", "numpy"])
def test_labels_of_any_kind(setting, kind):
    ann, x, y = setting
    snn = osp.convert(ann, osp.methods.qcfs())
    labels = {"list": y.tolist(), "numpy": y.numpy()}[kind] if isinstance(kind, str) else y.to(kind)
    right = (snn(x, 2).mean(0).argmax(-1) == y).double().mean().item()
    assert osp.evaluate(snn, iter([(x, labels)]), steps=2).accuracy[-1] == right


def test_what_is_no_network_is_refused(setting):
    ann, x, y = setting
    snn = osp.convert(ann, osp.methods.qcfs())
    with pytest.raises(TypeError, match=r"takes a spiking network; osp.convert\(ann"):
        osp.evaluate(ann, [(x, y)], steps=2)
    with pytest.raises(TypeError, match=r"the ANN that was converted, .* got str"):
        osp.evaluate(snn, [(x, y)], steps=2, reference="ann")
    for steps, error in ((0, ValueError), (-1, ValueError), (2.0, TypeError)):
        with pytest.raises(error, match="steps must be"):
            osp.evaluate(snn, [(x, y)], steps=steps)
    rows = osp.convert(nn.Sequential(nn.Linear(6, 4), osp.QCFS(4)).eval(), osp.methods.qcfs())
    with pytest.raises(TypeError, match=r"returns \[B, 2, 4\], not logits"):
        osp.evaluate(rows, [(x.reshape(11, 1, 6).repeat(1, 2, 1), y)], steps=2)


def test_numpy_numbers_are_whole_numbers(setting, tmp_path):
    ann, x, y = setting
    rho, steps = np.int64(4), np.int32(3)
    snn = osp.convert(ann, osp.methods.cos(rho, iterations=np.int16(2)))
    assert torch.equal(snn(x, steps), osp.convert(ann, osp.methods.cos(4, iterations=2))(x, 3))
    report = osp.evaluate(snn, [(x, y)], steps=steps)
    report.to_json(tmp_path / "report.json")
    assert osp.Report.from_json(tmp_path / "report.json") == report
    osp.save(snn, tmp_path / "snn.safetensors")
    assert osp.load(tmp_path / "snn.safetensors").method == osp.methods.cos(4, iterations=2)
    assert osp.Method.from_dict(osp.methods.snnc(np.int64(8)).to_dict()) == osp.methods.snnc(8)


def test_reports_add_up_and_compare(setting):
    ann, x, y = setting
    snn = osp.convert(ann, osp.methods.cos(4))
    whole = osp.evaluate(snn, [(x, y)], steps=3, reference=ann)
    parts = [osp.evaluate(snn, [part], steps=3, reference=ann) for part in batches(x, y, 4)]
    assert sum(parts) == whole
    assert parts[0] != whole
    assert whole != "report"
    with pytest.raises(TypeError):
        1 + whole
    for t in (0, 4):
        with pytest.raises(ValueError, match="t = 1 … 3"):
            whole.spikes(t)


def test_one_neuron_a_sample():
    """What comes to a layer as [B] is B samples of one neuron, not B neurons."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last = nn.Linear(6, 1), nn.Linear(1, 5), nn.Linear(5, 3)
            self.acts = nn.ModuleList([osp.QCFS(4), osp.QCFS(4)])

        def forward(self, x):
            x = self.acts[0](self.first(x).squeeze(-1)).unsqueeze(-1)
            return self.last(self.acts[1](self.second(x)))

    torch.manual_seed(0)
    ann, x = dyadic(Net()), dyadic_images(11, 6)
    for method in (osp.methods.exact(4), osp.methods.random(), osp.methods.cos(4), osp.methods.exact(4, place="carry")):
        snn = osp.convert(ann, method)
        together = snn(x, steps=6)
        assert torch.equal(together, torch.cat([snn(x[i : i + 1], steps=6) for i in range(11)], 1))
        assert torch.equal(together, snn(x, steps=6, piece=4))
        heard = []
        snn(x, steps=6, heard=lambda layer, spikes, heard=heard: heard.append(spikes))
        report = osp.evaluate(snn, batches(x, torch.arange(11) % 3, 4), steps=6)
        assert report.layers["acts.0"].spikes.tolist() == (heard[0] > 0).sum(1).tolist()
        assert report.layers["acts.0"].neurons == 1


@pytest.mark.parametrize("kind", ["list", "words", "dictionary", "tensors", "boxes"])
def test_labels_of_any_kind_are_cut_with_their_samples(setting, kind):
    """A CPU runs a first batch in parts, and each sample has to be judged by its own label."""
    ann, x, y = setting
    labels = {
        "list": y.tolist(),
        "words": ["abc"[label] for label in y],
        "dictionary": {"class": y, "names": ["abc"[label] for label in y], "of": 3},
        "tensors": (y, y.float()),
        "boxes": [{"class": label, "box": torch.zeros(2, 4)} for label in y],
    }[kind]

    def numbers(labels):
        if isinstance(labels, dict):
            assert labels["of"] == 3
            assert ["abc".index(name) for name in labels["names"]] == labels["class"].tolist()
            return labels["class"]
        if kind == "tensors":
            assert len(labels) == 2
            return labels[0]
        named = {"list": int, "words": "abc".index, "boxes": lambda box: int(box["class"])}[kind]
        return torch.tensor([named(label) for label in labels])

    def metric(out, labels):
        return (out.argmax(-1) == numbers(labels)).float()

    snn = osp.convert(ann, osp.methods.cos(4))
    report = osp.evaluate(snn, [(x, labels)], steps=4, metric=metric)
    expected = osp.evaluate(snn, [(x, y)], steps=4)
    np.testing.assert_array_equal(report.accuracy, expected.accuracy)


def test_who_watches_may_run_out_of_memory_and_nothing_counts_twice(setting):
    ann, x, y = setting
    snn, seen = osp.convert(ann, osp.methods.cos(4)), []

    def watch(inputs, labels, outputs, plain):
        seen.append(len(labels))
        if len(seen) == 2:
            raise torch.OutOfMemoryError("no")

    report = osp.evaluate(snn, [(x, y)], steps=4, watch=watch)
    assert sum(seen) == 11 + seen[1]
    np.testing.assert_array_equal(report.correct, osp.evaluate(snn, [(x, y)], steps=4).correct)
