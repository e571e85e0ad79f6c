"""Fixed-point networks on the whole CIFAR-10 test set: certificates, accuracy, and the same spikes everywhere.

    python reproduce/certify_cifar.py --data DIR --out RECORD

For each network and number of bits: snap (rounded on training images), convert exactly (T = ρ = L), certify on all test
images. Then the spikes of every layer for the first images are hashed under different batch sizes, on the CPU and the
GPU, with products of TF32, float32 and, on tensor cores, bf16 numbers. cuDNN may choose a Winograd convolution for
float32, which does not add products: that setting is reported, but not claimed. RECORD gets record.json, and for each
network a certificate and the network itself, which a second run takes as it is.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import offspike as osp
from offspike.clock import active_clock
from offspike.datasets import load
from offspike.experiment import levels_of, provenance
from offspike.fixed.proof import prove


def main() -> None:
    chosen = options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, test = (load("cifar10", chosen.data, split) for split in ("train", "test"))
    chosen.out.mkdir(parents=True, exist_ok=True)
    runs = []
    for name in chosen.models:
        for bits in chosen.bits:
            runs.append(one(name, bits, train, test, chosen, device))
            record = {"what": "fixed-point networks, certified", "runs": runs, **provenance(images=str(chosen.limit))}
            (chosen.out / "record.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
            print(json.dumps({k: v for k, v in runs[-1].items() if k not in ("layers", "spikes")}), flush=True)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="the folder that holds cifar-10-batches-bin")
    add("--out", type=Path, required=True, help="the folder of the record")
    add("--models", nargs="+", default=["resnet20-cifar10-l4", "resnet18-cifar10-l4", "vgg16-cifar10-l4"])
    add("--bits", type=int, nargs="+", default=[8, 4])
    add("--calibration", type=int, default=1000, help="training images that rounding looks at")
    add("--snap-only", action="store_true", help="make the networks in OUT, to be certified by a second run")
    add("--tune", type=int, default=0, help="epochs of fine-tuning on the training images")
    add("--limit", type=int, default=10000, help="test images")
    add("--batch", type=int, default=250)
    add("--hashed", type=int, default=256, help="images whose spikes are compared everywhere")
    add("--on-cpu", type=int, default=32, help="of those, compared between CPU and GPU")
    return parser.parse_args()


def one(name: str, bits: int, train, test, chosen: argparse.Namespace, device: torch.device) -> dict[str, object]:
    started = time.perf_counter()
    ann = osp.load(name).to(device)
    inputs = ann.preprocess
    calibration = inputs(train.images[: chosen.calibration].to(device))
    snapped = in_fixed_point(ann, calibration, train.images, chosen.out / f"{name}-int{bits}.safetensors", bits, chosen)
    fitted = time.perf_counter()
    if chosen.snap_only:
        return {"model": name, "bits": bits, "seconds_to_snap": round(fitted - started, 1)}
    levels = levels_of(snapped)
    for place in ("even", "first"):  # the second keeps potentials on a grid, whatever their size
        snn = osp.convert(snapped, osp.methods.exact(levels, place=place))
        if not prove(snapped, snn, steps=levels, inputs=(calibration[:1],)).reasons:
            break
    images, labels = test.images[: chosen.limit], test.labels[: chosen.limit]

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in zip(images.split(chosen.batch), labels.split(chosen.batch), strict=True):
            yield inputs(x).to(device), y.to(device)

    how = {"model": name, "bits": str(bits), "calibration": f"{chosen.calibration} training images",
           "tuning": f"{chosen.tune} epochs"}  # fmt: skip
    with products("TF32", snn):
        certificate = osp.certify(snapped, snn, batches(), provenance=how)
    certificate.to_json(chosen.out / f"{name}-int{bits}.json")
    with torch.no_grad(), products("float32 with cuDNN", snn):
        right = sum(int((ann(x).argmax(1) == y).sum()) for x, y in batches())
    with torch.no_grad(), products("TF32", snn):
        fast = all(torch.equal(snn.fast(x), snapped(x)) for x, _ in batches()) if certificate.proved else None
    spikes = compare(snn, inputs(images[: chosen.hashed]), levels, certificate.arithmetics, chosen, device)
    return {
        "model": name, "bits": bits, "T": certificate.steps, "place": place, "samples": certificate.samples,
        "proved": certificate.proved, "verdict": certificate.verdict(), "equal_logits": certificate.equal,
        "float_ann": round(100 * right / certificate.samples, 2),
        "fixed_point_ann": round(100 * (certificate.reference_correct or 0) / certificate.samples, 2),
        "spiking": round(100 * (certificate.correct or 0) / certificate.samples, 2),
        "fast_is_the_ann": fast, "arithmetics": certificate.arithmetics,
        "largest_sum_bits": max(made.bits for made in certificate.sums.values()),
        "largest_membrane_bits": max(layer.bound.membrane_bits for layer in certificate.layers.values() if layer.bound),
        "worst_output_ratio": min(layer.outputs.ratio for layer in certificate.layers.values()),
        "worst_mse": max(layer.outputs.mse for layer in certificate.layers.values()),
        "table_s2": certificate.ratios(), "same_spikes": {k: v == spikes["TF32, batch 256"] for k, v in spikes.items()
                                                          if not k.endswith("CPU images")},
        "same_spikes_on_the_cpu": spikes["the CPU, CPU images"] == spikes["this device, CPU images"],
        "spikes": spikes["TF32, batch 256"], "seconds_to_snap": round(fitted - started, 1),
        "seconds": round(time.perf_counter() - started, 1), "device": str(device),
    }  # fmt: skip


def in_fixed_point(ann, calibration: Tensor, images: Tensor, path: Path, bits: int, chosen: argparse.Namespace):
    """The network in fixed point; ``path`` keeps it, and is taken where it is there already."""
    if not path.exists():
        snapped = osp.snap(ann, bits=bits, example=calibration[:2], calibration=calibration, arithmetic="tf32")
        if chosen.tune:
            snapped = osp.tune(snapped, Shuffled(ann.preprocess, images, chosen.batch), teacher=ann, epochs=chosen.tune)
        osp.save(snapped, path, dtype={8: "int8", 4: "int4"}.get(bits, "float32"))  # nothing is lost: grids
    return osp.load(path).to(calibration.device)


class Shuffled:
    """Batches of inputs in a new order each time."""

    def __init__(self, inputs: Callable[[Tensor], Tensor], images: Tensor, batch: int) -> None:
        self.inputs, self.images, self.batch = inputs, images, batch

    def __iter__(self) -> Iterator[Tensor]:
        for some in torch.randperm(len(self.images)).split(self.batch):
            yield self.inputs(self.images[some])


def compare(snn, x: Tensor, steps: int, arithmetics: tuple[str, ...], chosen: argparse.Namespace,
            device: torch.device) -> dict[str, dict[str, str]]:  # fmt: skip
    """The hash of each layer's spikes in every setting."""
    found = {}
    with products("TF32", snn):
        found |= {f"TF32, batch {size}": hashes(snn, x, steps, size, device) for size in (256, 7, 1)}
    for setting in ("float32 without cuDNN", "float32 with cuDNN"):
        with products(setting, snn):
            found[setting] = hashes(snn, x, steps, 256, device)
    if "bf16" in arithmetics:
        found["bf16"] = hashes(with_bf16_products(snn), x, steps, 64, device)
    few = x[: chosen.on_cpu]
    with products("TF32", snn):
        found["this device, CPU images"] = hashes(snn, few, steps, 256, device)
    found["the CPU, CPU images"] = hashes(deepcopy(snn).cpu(), few, steps, 8, torch.device("cpu"))
    return found


def hashes(snn, x: Tensor, steps: int, batch: int, device: torch.device) -> dict[str, str]:
    """SHA-256 of the spikes of each layer, image by image, and of the logits."""
    made = {name: hashlib.sha256() for name in (*snn.layers, "logits")}

    def note(name: str, out: Tensor) -> None:
        spikes = active_clock().unfold(out).transpose(0, 1) > 0
        made[name].update(spikes.contiguous().cpu().numpy().tobytes())

    hooks = [
        layer.register_forward_hook(lambda m, args, out, name=name: note(name, out))
        for name, layer in snn.layers.items()
    ]
    for part in x.split(batch):
        logits = snn(part.to(device), steps).transpose(0, 1)
        made["logits"].update(logits.contiguous().cpu().numpy().tobytes())
    for hook in hooks:
        hook.remove()
    return {name: hash.hexdigest() for name, hash in made.items()}


@contextmanager
def products(setting: str, snn) -> Iterator[None]:
    """How a GPU multiplies: TF32 on tensor cores, float32 with cuDNN, or float32 by plain matrix products."""
    backends, tf32 = torch.backends, setting == "TF32"
    backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = tf32
    snn.precision = "tf32" if tf32 else "exact32"
    backends.cudnn.enabled = setting != "float32 without cuDNN"
    yield
    backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = False
    backends.cudnn.enabled = True


def with_bf16_products(snn):
    """A copy whose convolutions and linear layers multiply bf16 numbers and add in float32: on tensor cores, by mm."""
    snn = deepcopy(snn)
    for module in snn.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.forward = bf16_linear(module) if isinstance(module, nn.Linear) else bf16_convolution(module)
    return snn


def product(a: Tensor, b: Tensor) -> Tensor:
    """``a·b`` of bf16 matrices in float32. A CPU has no such product: there, bf16 numbers are taken as float32."""
    if a.is_cuda:
        return torch.mm(a.bfloat16(), b.bfloat16(), out_dtype=torch.float32)
    return a.bfloat16().float() @ b.bfloat16().float()


def bf16_linear(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    return lambda x: product(x, layer.weight.detach().T) + layer.bias


def bf16_convolution(layer: nn.Conv2d) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        weight = layer.weight.detach().flatten(1).T
        size = [(n + 2 * p - k) // s + 1 for n, p, k, s in
                zip(x.shape[2:], layer.padding, layer.kernel_size, layer.stride, strict=True)]  # fmt: skip
        patches = F.unfold(x, layer.kernel_size, padding=layer.padding, stride=layer.stride)  # [N, K, places]
        out = product(patches.transpose(1, 2).reshape(-1, patches.shape[1]), weight)
        out = out.view(len(x), *size, -1).permute(0, 3, 1, 2)
        return out if layer.bias is None else out + layer.bias.view(-1, 1, 1)

    return forward


if __name__ == "__main__":
    main()
