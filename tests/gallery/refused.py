"""What must be refused, with the line: each model marks the line that its message has to name."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    """A convolution, the obstacle, a classifier."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)
        self.norm, self.gelu, self.attention = nn.LayerNorm(4), nn.GELU(), nn.MultiheadAttention(4, 2)
        self.lstm, self.tokens = nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 4)

    def forward(self, x):
        x = self.middle(F.relu(self.conv1(x)))
        return self.fc(F.relu(self.conv2(x)).mean((2, 3)))

    def middle(self, x):
        raise NotImplementedError


class Sigmoid(Net):
    def middle(self, x):
        return torch.sigmoid(x)  # line sigmoid


class Tanh(Net):
    def middle(self, x):
        return x.tanh()  # line tanh


class Gelu(Net):
    def middle(self, x):
        return self.gelu(x)  # line gelu


class Silu(Net):
    def middle(self, x):
        return x + F.silu(x)  # line silu


class Swish(Net):
    def middle(self, x):
        return x * x  # line product


class SqueezeExcite(Net):
    """A gate in [0, 1]: clipped, so it is not the sigmoid that is wrong with it."""

    def middle(self, x):
        gate = F.hardtanh(x.mean((2, 3), keepdim=True), 0.0, 1.0)
        return x * gate  # line gate


class LayerNorm(Net):
    def middle(self, x):
        x = x.permute(0, 2, 3, 1)
        return self.norm(x).permute(0, 3, 1, 2)  # line norm


class FunctionalNorm(Net):
    def middle(self, x):
        return F.normalize(x, dim=1)  # line normalize


class Attention(Net):
    def middle(self, x):
        b, c, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        weights = torch.softmax(tokens @ tokens.transpose(1, 2), dim=-1)  # line softmax
        return (weights @ tokens).transpose(1, 2).reshape(b, c, h, w)


class LastSoftmax(Net):
    def forward(self, x):
        return F.softmax(self.fc(F.relu(self.conv1(x)).mean((2, 3))), dim=1)  # line last softmax

    def middle(self, x):
        return x


class Recurrent(Net):
    def middle(self, x):
        seen, _ = self.lstm(x.flatten(2).transpose(1, 2))  # line lstm
        return seen.transpose(1, 2).view_as(x)


class BatchMean(Net):
    def middle(self, x):
        return x - x.mean(0, keepdim=True)  # line batch mean


class BatchFlip(Net):
    def middle(self, x):
        return (x + x.flip(0)) / 2  # line flip


class BatchIndex(Net):
    def middle(self, x):
        return x - x[:1]  # line index


class BatchInView(Net):
    """Nothing says axis 0, yet samples change places."""

    def middle(self, x):
        b, c, h, w = x.shape
        return x.permute(1, 0, 2, 3).reshape(b, c, h, w)  # line view


class BatchStatistics(Net):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(4, track_running_stats=False)

    def middle(self, x):
        return self.bn(x)  # line statistics


class DataDependent(Net):
    def middle(self, x):
        if x.mean() > 0.5:  # line branch
            return x / 2
        return x


class BatchDependent(Net):
    def middle(self, x):
        return x / 2 if x.shape[0] > 1 else x  # line batch size


class AlwaysDropout(Net):
    def middle(self, x):
        return F.dropout(x, 0.5)  # line dropout


class Leaky(Net):
    def middle(self, x):
        return F.leaky_relu(x - 1, 0.1)  # line leaky


class Assigned(Net):
    def middle(self, x):
        x[:, 0] = 0  # line assign
        return x


class Unknown(Net):
    def middle(self, x):
        return torch.fft.fft2(x).real  # line unknown


class Absolute(Net):
    def middle(self, x):
        return x - x.abs()  # line abs


class Divided(Net):
    def middle(self, x):
        return x / (1 + x)  # line division


class Excite(Net):
    """As it is published: squeeze, two layers, a sigmoid."""

    def middle(self, x):
        gate = F.relu(self.tokens(x.mean((2, 3))))
        return x * torch.sigmoid(gate)[:, :, None, None]  # line excite


class InAList(Net):
    def __init__(self):
        super().__init__()
        self.acts = [nn.ReLU(), nn.ReLU()]

    def middle(self, x):
        for act in self.acts:
            x = act(x - 1)  # line list
        return x


class GlobalMaximum(Net):
    def middle(self, x):
        return x - x.flatten(2).max(-1)[0][:, :, None, None]  # line max


class Unpooled(Net):
    def middle(self, x):
        small, places = F.max_pool2d(x, 2, return_indices=True)  # line indices
        return x + F.interpolate(small, scale_factor=2) + 0 * places.sum()


class Cast(Net):
    def middle(self, x):
        return x.half().to(self.conv1.weight.dtype)  # line cast


class Floored(Net):
    def middle(self, x):
        return torch.div(x, 0.3, rounding_mode="floor")  # line floored


class Truncated(Net):
    def middle(self, x):
        return x.div(0.3, rounding_mode="trunc")  # line truncated


class KeywordDivision(Net):
    def middle(self, x):
        return torch.div(input=1 + 0 * self.conv1.bias.view(-1, 1, 1), other=1 + x)  # line keyword


class Capped(Net):
    def middle(self, x):
        return (x - 1).clamp_max(2)  # line cap


class TimeDistributed(Net):
    """The same layers for each column, with BatchNorm: rows that are not samples reach a neuron."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(4)

    def middle(self, x):
        b, c, h, w = x.shape
        x = x.permute(0, 2, 3, 1).reshape(-1, c)  # line rows
        return F.relu(self.bn(self.tokens(x))).view(b, h, w, c).permute(0, 3, 1, 2)


class ThroughDropout(Net):
    """In eval mode dropout returns the very tensor that it was given."""

    def __init__(self):
        super().__init__()
        self.drop, self.relu = nn.Dropout(), nn.ReLU(inplace=True)

    def middle(self, x):
        x = x - 0.25
        y = self.relu(self.drop(x))  # line dropped
        return self.conv2(y) + x


class ThroughChunk(Net):
    def middle(self, x):
        x = x - 0.25
        half, _ = x.chunk(2, 1)
        half.relu_()  # line chunk
        return x


class MadeInForward(Net):
    def middle(self, x):
        return nn.ReLU()(x - 1)  # line made


class Encoded(Net):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1)

    def middle(self, x):
        return self.encoder(x.flatten(2).transpose(1, 2)).transpose(1, 2).view_as(x)  # line encoder


class PoolOfTheBatch(Net):
    def middle(self, x):
        return x - F.max_pool2d(x, x.shape[0], 1)[:, :, :1, :1]  # line window


class Zeros(Net):
    def middle(self, x):
        return x + torch.zeros(x.size(0), 4, 1, 1)  # line zeros


class ZerosOfAShape(Net):
    def middle(self, x):
        return x + torch.zeros(x.shape)  # line zeros of a shape


class ZerosOfTheInput(Net):
    def forward(self, x):
        hidden = torch.zeros(1, x.size(0), 4)  # line hidden
        return self.fc(F.relu(self.conv1(x)).mean((2, 3)) + hidden[0])


class Ones(Net):
    def middle(self, x):
        return x + torch.ones(*x.shape)  # line ones


class Full(Net):
    def middle(self, x):
        return x + torch.full((x.size(0), 1, 1, 1), 0.5)  # line full


class Empty(Net):
    def middle(self, x):
        return x + 0 * torch.empty(x.size(0), 1, 1, 1)  # line empty


class Places(Net):
    def middle(self, x):
        return x + torch.arange(0, x.size(3))  # line places


class BatchPlaces(Net):
    def middle(self, x):
        return x + torch.arange(x.size(0)).view(-1, 1, 1, 1)  # line batch places


class Noise(Net):
    def middle(self, x):
        return x + torch.rand(x.size(0), 1, 1, 1)  # line noise


class NoiseLike(Net):
    def middle(self, x):
        return x + torch.randn_like(x)  # line noise like


class Length(Net):
    def middle(self, x):
        return x.view(len(x), -1).view_as(x)  # line length


class AsTensor(Net):
    def middle(self, x):
        return x + torch.as_tensor(x)  # line as tensor


class SizeAsTensor(Net):
    def middle(self, x):
        return x / torch.tensor(x.size(1))  # line size as tensor


class OwnRelu(Net):
    def forward(self, x):
        y = self.conv1(x)
        return self.fc(F.relu(self.conv2(y * (y > 0))).mean((2, 3)))  # line comparison


class OfASequence(Net):
    def middle(self, x):
        return x - torch.max(x.flatten(2), 2)[0][:, :, None, None]  # line sequence


class LogSigmoid(Net):
    def middle(self, x):
        return F.logsigmoid(x)  # line log


class Threshold(Net):
    def middle(self, x):
        return F.threshold(x, 0.5, 0.0)  # line threshold


IMAGE = [(3, 4, 4)]
_NEW = r"y.new_zeros\(y.size\(0\), 2\) for torch.zeros"
MODELS = {
    "sigmoid": (Sigmoid, IMAGE, "torch.sigmoid is an activation that spikes cannot follow", "sigmoid"),
    "tanh": (Tanh, IMAGE, "tanh is an activation that spikes cannot follow", "tanh"),
    "gelu": (Gelu, IMAGE, r"gelu \(.*GELU is an activation that spikes cannot follow", "gelu"),
    "silu": (Silu, IMAGE, "silu is an activation that spikes cannot follow", "silu"),
    "product": (Swish, IMAGE, "a product of spikes with spikes", "product"),
    "squeeze and excite": (SqueezeExcite, IMAGE, "a product of spikes with spikes", "gate"),
    "layer norm": (LayerNorm, IMAGE, r"norm \(.*LayerNorm is a normalisation over each sample", "norm"),
    "normalize": (FunctionalNorm, IMAGE, "normalize is a normalisation over each sample", "normalize"),
    "attention": (Attention, IMAGE, "softmax is softmax attention", "softmax"),
    "last softmax": (LastSoftmax, IMAGE, "leave it out: the largest logit is the same", "last softmax"),
    "recurrent": (Recurrent, IMAGE, "lstm.*LSTM is a recurrent layer", "lstm"),
    "batch mean": (BatchMean, IMAGE, "mean is an operation on the batch axis", "batch mean"),
    "batch flip": (BatchFlip, IMAGE, "flip is an operation on the batch axis", "flip"),
    "batch index": (BatchIndex, IMAGE, "getitem is an operation on the batch axis", "index"),
    "batch in a view": (BatchInView, IMAGE, "is an operation on the batch axis", "view"),
    "batch statistics": (BatchStatistics, IMAGE, "BatchNorm2d is an operation on the batch axis", "statistics"),
    "data-dependent control flow": (DataDependent, IMAGE, "control flow depends on the data", "branch"),
    "batch-dependent control flow": (BatchDependent, IMAGE, "depends on the size of the batch", "batch size"),
    "dropout that is always on": (AlwaysDropout, IMAGE, "dropout is dropout that is always on", "dropout"),
    "leaky relu": (Leaky, IMAGE, "leaky_relu is an activation that spikes cannot follow", "leaky"),
    "assignment": (Assigned, IMAGE, "an assignment into a tensor .*torch.cat or F.pad", "assign"),
    "unknown": (Unknown, IMAGE, "an operation that offspike does not know", "unknown"),
    "absolute value": (Absolute, IMAGE, "abs is not linear", "abs"),
    "squeeze, excite, sigmoid": (Excite, IMAGE, "torch.sigmoid is an activation that spikes cannot follow", "excite"),
    "layers in a list": (InAList, IMAGE, "nn.ModuleList makes it one", "list"),
    "global maximum": (GlobalMaximum, IMAGE, r"AdaptiveMaxPool2d\(1\)", "max"),
    "indices of maxima": (Unpooled, IMAGE, "max-pooling that returns indices", "indices"),
    "cast": (Cast, IMAGE, "half is a matter of dtype or device", "cast"),
    "floor division": (Floored, IMAGE, "torch.div is not linear", "floored"),
    "truncated division": (Truncated, IMAGE, "div is not linear", "truncated"),
    "division by keyword": (KeywordDivision, IMAGE, "torch.div is not linear", "keyword"),
    "cap": (Capped, IMAGE, r"clamp_max is a bound from above alone. .*x.clamp\(0, c\)", "cap"),
    "time distributed": (TimeDistributed, IMAGE, "reshape is an operation that merges samples", "rows"),
    "in place through dropout": (ThroughDropout, IMAGE, r"relu \(.*: ReLU is an activation that changes", "dropped"),
    "in place through chunk": (ThroughChunk, IMAGE, "relu_ is an activation that changes a tensor in place", "chunk"),
    "made in forward": (MadeInForward, IMAGE, r"self.layer = ReLU\(…\), not in forward", "made"),
    "encoder": (Encoded, IMAGE, r"encoder \(.*TransformerEncoder is softmax attention", "encoder"),
    "pool of the batch": (PoolOfTheBatch, IMAGE, "depends on the size of the batch", "window"),
    "zeros": (Zeros, IMAGE, _NEW, "zeros"),
    "zeros of a shape": (ZerosOfAShape, IMAGE, _NEW, "zeros of a shape"),
    "zeros of the input's size": (ZerosOfTheInput, IMAGE, _NEW, "hidden"),
    "ones": (Ones, IMAGE, rf"torch.ones is.*{_NEW}.*y.new_ones", "ones"),
    "full": (Full, IMAGE, rf"torch.full is.*{_NEW}.*y.new_full", "full"),
    "empty": (Empty, IMAGE, rf"torch.empty is.*{_NEW}", "empty"),
    "arange": (Places, IMAGE, r"torch.arange is.*self.register_buffer\(", "places"),
    "arange of the batch": (BatchPlaces, IMAGE, r"torch.arange is.*self.register_buffer\(", "batch places"),
    "noise": (Noise, IMAGE, "torch.rand is a random tensor.*if self.training", "noise"),
    "noise like": (NoiseLike, IMAGE, "torch.randn_like is a random tensor.*if self.training", "noise like"),
    "length": (Length, IMAGE, r"write x.size\(0\)", "length"),
    "as tensor": (AsTensor, IMAGE, "torch.as_tensor of .*leave it out: a tensor is one already", "as tensor"),
    "size as tensor": (SizeAsTensor, IMAGE, "torch.tensor or .*a size may stand as the number", "size as tensor"),
    "comparison": (OwnRelu, IMAGE, r"gt is not among .*x \* \(x > 0\) is F.relu\(x\)", "comparison"),
    "maximum of a sequence": (OfASequence, IMAGE, r"AdaptiveMaxPool1d\(1\)", "sequence"),
    "log sigmoid": (LogSigmoid, IMAGE, "log.?sigmoid is an activation that spikes cannot follow", "log"),
    "threshold": (Threshold, IMAGE, "threshold is an activation that spikes cannot follow", "threshold"),
    "division": (Divided, IMAGE, "truediv is not linear", "division"),
}
