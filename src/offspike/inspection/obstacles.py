"""What spikes cannot follow, by the type of a layer and by the name of a function: what it is, and the way out."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from offspike.capture import FACTORIES, INSTEAD

__all__ = [
    "ADVICE", "FUNCTIONS", "LINEAR", "MENDED", "MODULES", "PREPARE", "Finding", "check",
    "check_model", "refuse",
]  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing that ``audit`` has to say: where, what, how to mend it, and whether it stops conversion.

    ``where`` is the module's qualified name, ``source`` the file and line in the user's code, where there is one.
    """

    where: str
    what: str
    fix: str
    fatal: bool
    source: str = ""

    def __str__(self) -> str:
        place = f" ({self.source})" if self.source else ""
        return f"{self.where}{place}: {self.what}. {self.fix}"


def refuse(findings: list[Finding]) -> None:
    """Raise a ValueError that names every fatal finding, if there is one."""
    fatal = [str(finding) for finding in findings if finding.fatal]
    if fatal:
        raise ValueError("this model cannot be converted:\n- " + "\n- ".join(fatal))


_WRAPPERS = {  # by name: importing torch.compile's takes seconds
    "DataParallel": "model.module",
    "DistributedDataParallel": "model.module",
    "OptimizedModule": "model._orig_mod, as it was before torch.compile",
    "SpikingNetwork": "the ANN that it was converted from",
}


def check(model: Any, x: Any) -> None:
    """Whether these are a model and an example at all."""
    check_model(model)
    inputs = x if isinstance(x, tuple) else () if x is None else (x,)
    for value in inputs:
        if not isinstance(value, Tensor) or not value.ndim or not len(value):
            got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"the example is a batch of inputs: a tensor, or a tuple of tensors for several; got {got}")


def check_model(model: Any) -> None:
    """Whether this is a model at all, and itself."""
    if not isinstance(model, nn.Module):
        made = f"the class {model.__name__}: make one, {model.__name__}(…)" if isinstance(model, type) else None
        named = f"{model!r}: osp.load(name or path) gives a saved one" if isinstance(model, str) else None
        raise TypeError(f"the model must be a torch.nn.Module, got {made or named or type(model).__name__}")
    kind = type(model).__name__
    if kind in _WRAPPERS or isinstance(model, torch.jit.ScriptModule):
        raise TypeError(f"{kind} is not the model itself: give {_WRAPPERS.get(kind, 'it as it was before torch.jit')}")


MENDED = "osp.prepare"  # stands in the fix of whatever osp.prepare mends
PREPARE = "osp.prepare(model, osp.QCFS(levels=4), example=x) replaces it; then train or call osp.init_thresholds"
_POOL = (
    "the maximum over spikes is not the spike of the maximum; osp.prepare puts average pooling in its place "
    '(train the network with it), or, with pool="gate", a max-pool that counts spikes'
)
_SMOOTH = "a spiking neuron computes a clipped ReLU; train the network with osp.QCFS instead"
_NORM = "it is not linear in the spikes of one step; use BatchNorm, which is affine once trained"
_LINEAR = "between two activations a network must be linear in the spikes; take it out, or compute it on the input"
_FEED_FORWARD = "only feed-forward networks can be converted"
_ATTENTION = "only networks of linear layers and clipped ReLUs can be converted"

ADVICE: dict[str, tuple[str, str]] = {
    "relu": ("an activation without a threshold", PREPARE),
    "pool": ("max-pooling", _POOL),
    "smooth": ("an activation that spikes cannot follow", _SMOOTH),
    "norm": ("a normalisation over each sample", _NORM),
    "softmax": ("a softmax", "leave it out: the largest logit is the same"),
    "attention": ("softmax attention", _ATTENTION),
    "recurrent": ("a recurrent layer", _FEED_FORWARD),
    "nonlinear": ("not linear", _LINEAR),
    "maximum": (
        "a maximum, which is not linear",
        "max(x, 0) is F.relu(x), and the maximum of a map is nn.AdaptiveMaxPool2d(1), of a sequence "
        "nn.AdaptiveMaxPool1d(1): write these so; others must go",
    ),
    "indices": (
        "max-pooling that returns indices",
        "spikes have no one place of the maximum: pool without return_indices, and upsample instead of unpooling",
    ),
    "outside": (
        "not among the operations that a graph holds",
        "x * (x > 0) is F.relu(x): write it so. What is a matter of the input alone can be computed before the network "
        "and be an input of its own: forward(self, x, mask), example=(x, mask)",
    ),
    "dictionary": ("an input that is a dictionary", "give its tensors one by one, forward(self, image, mask)"),
    "cast": (
        "a matter of dtype or device",
        "take it out: convert the input before the network, and the network as a whole",
    ),
    "product": (
        "a product of spikes with spikes",
        "the mean of a product is not the product of the means; multiply by a constant or by the input instead",
    ),
    "dropout": ("dropout that is always on", "pass training=self.training, or use nn.Dropout"),
    "embedding": (
        "a look-up in a table by whole numbers",
        "look it up before the network, and give it the vectors: forward(self, vectors)",
    ),
    "cap": (
        "a bound from above alone",
        "clip at both ends at once, x.clamp(0, c), which is a clipped ReLU",
    ),
    "alias": (
        "an activation that changes a tensor in place which the model uses again under another name",
        "take inplace=True out (F.relu(x) for x.relu_()), and use its result where the changed tensor is meant",
    ),
    "merges": (
        "an operation that merges samples with another axis, and neurons come before they are apart again",
        "a neuron needs axis 0 to hold the samples: nn.Linear and ReLU take [B, n, features] as it is, and "
        "nn.BatchNorm1d takes [B, features, n]",
    ),
    "mixes": (
        "an operation on the batch axis: samples feel each other",
        "axis 0 holds samples, and in the spiking network all their time-steps; work on the other axes",
    ),
    "mode": (
        "something else while the model is trained (self.training)",
        "it is converted as it runs in eval mode, and trained so where prepare writes a graph; "
        "layers such as nn.Dropout keep both ways",
    ),
    "write": ("an assignment into a tensor", "build the tensor with torch.cat or F.pad"),
    **INSTEAD,
    "unknown": (
        "an operation that offspike does not know",
        "write it with the operations that offspike.graph lists; if it is linear in each sample, "
        "make it a layer and name it with offspike.leaves.register_leaf",
    ),
}

MODULES: dict[type[nn.Module], str] = {
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.Hardtanh), "relu"),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), "pool"),
    **dict.fromkeys((nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), "pool"),
    **dict.fromkeys((nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.SELU, nn.CELU, nn.Mish, nn.Softplus), "smooth"),
    **dict.fromkeys((nn.PReLU, nn.LeakyReLU, nn.Hardswish, nn.Hardsigmoid, nn.RReLU, nn.Softsign, nn.GLU), "smooth"),
    **dict.fromkeys((nn.LogSigmoid, nn.Hardshrink, nn.Softshrink, nn.Tanhshrink), "smooth"),
    **dict.fromkeys((nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm, nn.RMSNorm), "norm"),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), "norm"),
    **dict.fromkeys((nn.Softmax, nn.LogSoftmax, nn.Softmax2d, nn.Softmin), "softmax"),
    **dict.fromkeys((nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell), "recurrent"),
    **dict.fromkeys((nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.Transformer), "attention"),
    **dict.fromkeys((nn.TransformerEncoder, nn.TransformerDecoder, nn.TransformerDecoderLayer), "attention"),
    **dict.fromkeys((nn.Embedding, nn.EmbeddingBag), "embedding"),
    **dict.fromkeys((nn.LPPool1d, nn.LPPool2d, nn.LPPool3d), "nonlinear"),
    nn.Bilinear: "product",
}
_NAMES = {
    "relu": "relu relu6",
    "pool": "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
    "smooth": "sigmoid tanh gelu silu elu selu celu mish softplus prelu leaky_relu hardswish hardsigmoid hardtanh "
    "rrelu softsign glu logsigmoid log_sigmoid hardshrink softshrink tanhshrink _threshold threshold clamp clip "
    "clamp_min",
    "norm": "layer_norm group_norm instance_norm local_response_norm normalize rms_norm",
    "softmax": "softmax log_softmax softmin gumbel_softmax",
    "attention": "scaled_dot_product_attention multi_head_attention_forward",
    "nonlinear": "exp log sqrt rsqrt pow abs square sin cos sign min amin argmax topk sort median norm std "
    "var minimum floor round reciprocal floordiv mod where eq ne lt le gt ge cumprod prod erf logsumexp "
    "log1p log2 log10 expm1 exp2 ceil trunc frac cummax cummin logcumsumexp copysign lp_pool1d lp_pool2d nan_to_num",
    "maximum": "max amax maximum",
    "indices": "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices "
    "adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices",
    "cast": "to type half bfloat16 double long int type_as cuda cpu dtype device",
    "embedding": "embedding embedding_bag",
    "cap": "clamp_max",
    "product": "bilinear",
    "write": "setitem",
}
FUNCTIONS: dict[str, str] = {**FACTORIES, **{name: kind for kind, names in _NAMES.items() for name in names.split()}}

# Linear, or affine: any argument may carry spikes (a product only one of them, anything else only the first).
LINEAR = frozenset(("add", "iadd", "sub", "isub", "cat", "concat", "stack"))
