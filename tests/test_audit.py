"""Findings: where, what, fix, fatal, and the line."""

import sys
from dataclasses import dataclass
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import offspike as osp
from gallery import ACCEPTED, REFUSED


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), nn.SiLU()

    def forward(self, x):
        return self.act(self.fc(x)) + torch.tanh(x)  # both


class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.blocks = nn.Linear(4, 4), nn.Sequential(Inner(), Inner())

    def forward(self, x):
        return F.softmax(self.blocks(F.relu(self.fc(x))), -1)


def test_every_obstacle_in_order_with_its_name_and_line():
    findings = osp.audit(Many(), torch.rand(2, 4))
    said = [(f.where, f.what.partition(" ")[0].rpartition(".")[2]) for f in findings[1:]]
    both = [("SiLU", "blocks.{}.act"), ("tanh", "blocks.{}")]
    expected = [(where.format(k), what) for k in range(2) for what, where in both]
    assert said == [("the model", "relu"), *expected, ("the model", "softmax")]
    with open(__file__) as file:
        line = next(number for number, text in enumerate(file, 1) if text.rstrip().endswith("# both"))
    assert [f.source for f in findings[2:6]] == [f"{__file__}, line {line}"] * 4
    assert all(f.fatal and f.fix for f in findings)
    assert f"blocks.1.act ({__file__}, line {line}): SiLU is" in str(findings[4])


def test_convert_refuses_with_the_same_findings():
    model = Many()
    with pytest.raises(ValueError, match="this model cannot be converted") as caught:
        osp.convert(model, osp.methods.cos(4), example=torch.rand(2, 4))
    assert all(str(finding) in str(caught.value) for finding in osp.audit(model, torch.rand(2, 4)))


@pytest.mark.parametrize("name", ["vgg", "vision resnet", "siamese", "assertive", "u-net"])
def test_nothing_is_found_in_a_prepared_network(name):
    make, shapes = ACCEPTED[name]
    example = tuple(torch.rand(2, *shape) for shape in shapes)
    ann = osp.prepare(make(), osp.QCFS(4), example=example)
    assert osp.audit(ann, example) == []


def test_layers_that_are_never_called_do_not_matter():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.act, self.auxiliary = nn.Linear(2, 2), osp.QCFS(4), nn.Sequential(nn.Sigmoid())

        def forward(self, x):
            return self.act(self.fc(x))

    assert osp.audit(Unused(), torch.rand(2, 2)) == []


def test_a_layer_of_unknown_kind_is_named():
    model = nn.Sequential(nn.Linear(4, 4), osp.QCFS(4), nn.CosineSimilarity(), nn.Linear(4, 4))
    findings = osp.audit(nn.Sequential(*model[:2], nn.Threshold(0.1, 20.0)))
    assert [f.where for f in findings] == ["2"]
    assert "Threshold is an operation that offspike does not know" in findings[0].what


class Odd(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.fc, self.act = how, nn.Linear(4, 4), osp.QCFS(4)

    def forward(self, x):
        return self.how(self.act(self.fc(x)))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda x: x / x, "not linear"),
        (lambda x: 1 / (x + 1), "not linear"),
        (lambda x: x * torch.rand(x.shape[0], 1), "cannot be captured"),
        (lambda x: x @ x.transpose(0, 1), "product"),
        (lambda x: x**2, "not linear"),
        (lambda x: x.sum(-2), "batch axis"),
        (lambda x: x.view(2, -1), "batch axis"),
        (lambda x: x.flatten(0), "batch axis"),
        (lambda x: x * x.shape[0], "batch axis"),
        (lambda x: torch.cat([x, x]), "batch axis"),
        (lambda x: x.roll(1, 0), "batch axis"),
        (lambda x: F.batch_norm(x, None, None, training=True), "batch axis"),
        (lambda x: torch.maximum(x, x + 1), "not linear"),
        (lambda x: torch.stack([2 * row for row in x]), "control flow depends on the data"),
        (lambda x: x * len(x), "len(x) of a tensor is a plain number, the size of the batch: write x.size(0)"),
        (lambda x: x.new_full((2, 4), 0.5) + x, "batch axis"),
    ],
)
def test_what_mangles_spikes_is_never_let_through(how, said):
    findings = osp.audit(Odd(how), torch.rand(2, 4))
    assert any(said in str(finding) for finding in findings if finding.fatal), [str(f) for f in findings]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda x: x.permute(1, 0, 2, 3).reshape(x.shape), "permute is an operation on the batch axis"),
        (lambda x: torch.permute(x, dims=(1, 0, 2, 3)).reshape(x.shape), "torch.permute is an operation on the batch"),
        (lambda x: x.transpose(0, 1).reshape(x.shape), "transpose is an operation on the batch axis"),
        (lambda x: x.movedim(0, 1).reshape(x.shape), "movedim is an operation on the batch axis"),
        (lambda x: x.flatten(1).t().reshape(x.shape), "t is an operation on the batch axis"),
        (lambda x: x - x.roll(1, 0), "roll is an operation on the batch axis"),
        (nn.BatchNorm2d(4, track_running_stats=False), "BatchNorm2d is an operation on the batch axis"),
        (lambda x: F.batch_norm(x, None, None, None, None, True), "batch_norm is an operation on the batch axis"),
    ],
)
def test_what_mixes_samples_is_refused_without_an_example(how, said):
    model = nn.Sequential(nn.Conv2d(3, 4, 1), osp.QCFS(4), Then(how), nn.Conv2d(4, 4, 1), osp.QCFS(4))
    with pytest.raises(ValueError, match=said) as caught:
        osp.convert(model, osp.methods.exact(4))
    assert f"{__file__}, line " in str(caught.value)


class Then(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        return self.how(x)


@pytest.mark.parametrize(
    "how",
    [
        lambda x: x.permute(0, 2, 3, 1),
        lambda x: x.permute(-4, -1, -2, -3),
        lambda x: x.transpose(-1, -2),
        lambda x: x.movedim(1, -1),
        lambda x: x.roll(1, 2),
        lambda x: x.mean(dim=(2, 3)),
        lambda x: torch.stack([x, x]).sum(dim=0),
    ],
)
def test_the_other_axes_are_free(how):
    assert osp.audit(nn.Sequential(nn.Conv2d(3, 4, 1), osp.QCFS(4), Then(how)), torch.rand(2, 3, 4, 4)) == []


def test_a_stack_that_is_used_otherwise_is_on_the_batch_axis():
    found = osp.audit(Odd(lambda x: (stack := torch.stack([x, 2 * x])).mean(0) + stack[1]), torch.rand(2, 4))
    assert "torch.stack is an operation on the batch axis" in found[0].what


def test_rows_may_be_merged_where_no_neuron_sees_it():
    model = nn.Sequential(nn.Linear(4, 4), osp.QCFS(4), nn.Unflatten(1, (2, 2)), Rows(), osp.QCFS(4), nn.Flatten())
    x = torch.rand(3, 4)
    assert osp.audit(model, x) == []
    assert torch.allclose(osp.convert(model, osp.methods.exact(4), example=x)(x, 4).mean(0), model(x), atol=1e-6)


class Rows(nn.Module):
    """A linear layer applied to all rows at once, and the samples apart again."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(x.reshape(-1, 2)).view(x.size(0), -1)


def test_an_embedding_is_named():
    model = nn.Sequential(nn.Embedding(10, 4), osp.QCFS(4))
    (finding,) = osp.audit(model, torch.zeros(2, 5, dtype=torch.long))
    assert "Embedding is a look-up in a table" in finding.what


def test_the_dtype_is_that_of_the_weights():
    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.act, self.fc = osp.QCFS(4), nn.Linear(4, 4, dtype=torch.float64)

        def forward(self, x):
            return self.act(self.fc(x))

    model = First()
    assert next(model.parameters()).dtype == torch.float32, "λ comes first"
    assert osp.audit(model, torch.rand(2, 4, dtype=torch.float64)) == []


def test_an_activation_changed_in_place_under_another_name_is_no_spiking_layer():
    make, shapes, _, _ = REFUSED["in place through dropout"]
    found = osp.audit(make().eval(), torch.rand(2, *shapes[0]))
    assert found.verdict == "refused"
    assert [o.what for o in found.operations if o.fate == "refused"] == ["ReLU"]


def test_an_input_shape_of_the_users_own_is_not_ours():
    model = nn.Sequential(nn.Linear(4, 4), osp.QCFS(4))
    model.input_shape = 4
    assert osp.audit(model) == []


def test_what_the_model_keeps_on_itself_is_put_back():
    class Keeping(Odd):
        calls = 0

        def forward(self, x):
            self.calls += 1
            self.kept = super().forward(x)
            return self.kept

    model = Keeping(lambda x: 2 * x)
    osp.audit(model, torch.rand(2, 4))
    assert model.calls == 0
    assert not hasattr(model, "kept")


def test_forward_must_name_its_inputs():
    class Stars(nn.Module):
        def forward(self, *xs):
            return xs

    with pytest.raises(ValueError, match="names no inputs"):
        osp.convert(Stars(), osp.methods.cos(4))


def test_parametrised_layers_are_layers():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 2))
    x = torch.rand(3, 4)
    ann = osp.prepare(model.eval(), osp.QCFS(4), example=x)
    assert torch.allclose(osp.convert(ann, osp.methods.exact(4))(x, 4).mean(0), ann(x), atol=1e-6)


def test_the_model_is_left_alone():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), osp.QCFS(4))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    osp.audit(model, torch.rand(2, 1, 4, 4))
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_sequences_and_sizes_are_not_the_batch():
    class Fine(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = osp.QCFS(4)

        def forward(self, x):
            a, b = self.act(x).chunk(2, 1)
            return torch.stack([a, b], 1).sum(1).reshape(x.shape[0], -1) * x.shape[1] / x.size()[1]

    assert osp.audit(Fine(), torch.rand(2, 4)) == []


@pytest.mark.parametrize("otherwise", [lambda x: torch.cat(x, 1), lambda x: x[:, :1]])
def test_code_that_asks_for_tensors_is_refused(otherwise):
    """The tracer's stand-ins are no tensors: the model takes another way than it would."""
    model = Odd(lambda x: 2 * x if isinstance(x, torch.Tensor) else otherwise(x))
    model.act = nn.ReLU()
    with pytest.raises(ValueError, match=r"as it was traced.*(does not run|answers otherwise)"):
        osp.prepare(model, osp.QCFS(4), example=torch.rand(2, 4))


def test_every_operation_in_order_and_what_becomes_of_it():
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), osp.QCFS(4), nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(8, 4), nn.Sigmoid(),
    )  # fmt: skip
    found = osp.audit(model, torch.rand(2, 1, 8, 8))
    assert [(o.where, o.what) for o in found.operations[1:-1]] == [
        (str(k), type(m).__name__) for k, m in enumerate(model)
    ]
    once, spikes, prepared = "stays, computed once: no spikes yet", "becomes a spiking layer", "by osp.prepare"
    assert [o.fate for o in found.operations] == [
        "the same at every step", once, once, spikes, "stays, linear", "stays, affine in eval mode",
        f"{spikes} {prepared}", f"becomes an average or gated pool {prepared}", "does nothing in eval mode",
        "stays, linear", "stays, linear", "refused", "one for each step",
    ]  # fmt: skip
    assert found.verdict == "refused"
    assert osp.audit(model[:-1], torch.rand(2, 1, 8, 8)).verdict == "prepare"
    assert osp.audit(model[:5], torch.rand(2, 1, 8, 8)).verdict == "ready"


def test_a_finding_belongs_to_its_operation():
    found = osp.audit(Odd(lambda x: torch.maximum(x, x + 1)), torch.rand(2, 4))
    assert [o.what for o in found.operations if o.fate == "refused"] == ["torch.maximum"]
    assert found.to_dict()["findings"] == [vars(finding) for finding in found]


class Moody(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act, self.head = nn.Linear(4, 4), osp.QCFS(4), nn.Linear(4, 2)

    def forward(self, x):
        x = F.dropout(self.act(self.fc(x)), 0.5, self.training)  # mood
        return (self.head(x), x) if self.training else self.head(x)


def test_what_is_done_otherwise_while_training_is_noted():
    model = Moody()
    found = osp.audit(model, torch.rand(2, 4))
    with open(__file__) as file:
        line = next(number for number, text in enumerate(file, 1) if text.rstrip().endswith("# mood"))
    assert [finding.fatal for finding in found] == [False, False]
    assert found[0].source == f"{__file__}, line {line}"
    assert "dropout is something else while the model is trained" in found[0].what
    assert found.verdict == "ready"
    assert model.training, "its mode is left alone"
    assert osp.convert(model, osp.methods.exact(4), example=torch.rand(2, 4))(torch.rand(2, 4), 4).shape == (4, 2, 2)


def test_looking_at_training_mode_draws_no_random_numbers():
    torch.manual_seed(0)
    osp.audit(Moody(), torch.zeros(2, 4))
    first = torch.rand(3)
    torch.manual_seed(0)
    Moody()
    assert torch.equal(first, torch.rand(3))


def test_a_dictionary_as_input_is_named():
    class Batch(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = osp.QCFS(4)

        def forward(self, batch):
            return self.act(batch["image"])

    assert ["an input that is a dictionary" in str(finding) for finding in osp.audit(Batch())] == [True]


def test_a_result_of_several_is_blamed_once():
    found = osp.audit(Odd(lambda x: x.max(-1, keepdim=True)[0]), torch.rand(2, 4))
    assert [finding.what for finding in found] == ["max is a maximum, which is not linear"]


def test_an_answer_of_a_class_of_its_own_is_refused():
    @dataclass
    class Answer:
        logits: torch.Tensor

    found = osp.audit(Odd(Answer), torch.rand(2, 4))
    assert "Answer is a class of its own: return a tensor, a tuple, a list or a dictionary" in str(found[-1])


@pytest.mark.parametrize("does", ["raise TypeError(f'unknown tensor {type(x)}')", "return x.erfinv()"])
def test_the_users_line_is_named_not_that_of_a_library(does, tmp_path, monkeypatch):
    """A library of tensor operations, as einops is, that knows no stand-ins, or does what graphs do not know."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "pickytensors.py").write_text(f"def act(x):\n    {does}\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "pickytensors", raising=False)
    act = import_module("pickytensors").act
    found = osp.audit(Odd(lambda x: act(x)), torch.rand(2, 4))
    assert f"({__file__}, line " in str(found[-1])
    assert "pickytensors" not in str(found[-1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_weights_do_not_hide_what_mixes_samples(dtype):
    x = torch.rand(2, 4).to(dtype)
    found = osp.audit(Odd(lambda x: x - x.mean(-2, keepdim=True)).to(dtype), x)
    assert ["mean is an operation on the batch axis" in str(finding) for finding in found] == [True]
    assert osp.audit(Odd(lambda x: x - x.mean(-1, keepdim=True)).to(dtype), x) == []


def test_a_spiking_network_is_looked_into():
    x = torch.rand(2, 4)
    fine, odd = (
        osp.convert(Odd(lambda x, axis=axis: x - x.mean(axis, keepdim=True)), osp.methods.exact(4)) for axis in (-1, -2)
    )
    assert osp.audit(fine.model, x) == []
    assert ["mean is an operation on the batch axis" in str(finding) for finding in osp.audit(odd.model, x)] == [True]
