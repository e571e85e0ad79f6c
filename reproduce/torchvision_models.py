"""Audit, prepare and convert the models of torchvision and timm, and compare each spiking network with its ANN.

    python reproduce/torchvision_models.py --out RECORD

Each model has random weights, batch norms with the statistics of a random batch, and QCFS in place of its ReLUs (L=4,
thresholds from that batch, max-pools gated); the spiking network is calibrated exactly at ρ = T = L. In float64 the two
differ by rounding alone, unless that tips a spike; errors are fractions of the largest output. A model that cannot be
converted is listed with its first obstacle.
"""

import argparse
import importlib.util
import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import offspike as osp
from offspike.experiment import provenance
from offspike.graph import map_values
from offspike.inspection.obstacles import MENDED

TORCHVISION = (
    "alexnet resnet18 resnet34 resnet50 resnext50_32x4d vgg11 vgg16_bn mobilenet_v2 mnasnet0_5 densenet121 googlenet "
    "inception_v3 squeezenet1_1 shufflenet_v2_x0_5 regnet_x_400mf fcn_resnet50 "
    "regnet_y_400mf mobilenet_v3_small efficientnet_b0 convnext_tiny vit_b_32 swin_t"
)
TIMM = (
    "resnet10t resnet26 vgg11_bn densenet121 hrnet_w18_small dla34 vovnet39a repvgg_a0 selecsls42 mobilenetv2_050 "
    "ghostnet_100 mixer_s32_224"
)
SIZES = {"inception_v3": 96, "vit_b_32": 224, "swin_t": 64, "mixer_s32_224": 224, "alexnet": 96}
LEVELS = 4


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("names", nargs="*", help="torchvision:resnet18 timm:resnet10t …; default: a list of both, as far as installed")
    add("--images", type=int, default=2)
    add("--size", type=int, default=64)
    add("--dtype", choices=("float64", "float32"), default="float64")
    add("--max-seconds", type=float, default=600.0, help="no model is begun after that")
    add("--out", type=Path, help="the folder of the record")
    return parser.parse_args()


def make(name: str) -> nn.Module:
    """The model ``package:name`` with random weights, without auxiliary heads."""
    package, _, model = name.partition(":")
    torch.manual_seed(0)
    if package == "timm":
        import timm

        return timm.create_model(model, num_classes=10)
    from torchvision import models

    if model.startswith("fcn"):
        return models.get_model(model, weights=None, weights_backbone=None, num_classes=5)
    extra: dict[str, Any] = {}
    if model in ("googlenet", "inception_v3"):
        extra = {"aux_logits": False, "transform_input": False, "init_weights": False}
    return models.get_model(model, weights=None, num_classes=10, **extra)


def settle(model: nn.Module, x: Tensor) -> nn.Module:
    """Give every batch norm the statistics of this batch, as training would."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(x)
    return model.eval()


def tensors(output: Any) -> Tensor:
    """All numbers of an output, whatever it is made of."""
    found: list[Tensor] = []
    map_values(output, lambda leaf: found.append(leaf.flatten()) if isinstance(leaf, Tensor) else None)
    return torch.cat(found)


@torch.no_grad()
def compare(model: nn.Module, x: Tensor) -> dict[str, object]:
    """How far the spiking network is from its ANN, or which operation cannot be converted."""
    found = osp.audit(model, x)
    obstacles = [finding for finding in found if finding.fatal and MENDED not in finding.fix]
    if obstacles:
        first = replace(obstacles[0], source=obstacles[0].source.rpartition("/")[2])
        return {"verdict": "refused", "obstacles": len(obstacles), "first": str(first)}
    ann = osp.prepare(model, osp.QCFS(LEVELS), example=x, pool="gate").eval()
    osp.init_thresholds(ann, x)
    snn = osp.convert(ann, osp.methods.exact(LEVELS), example=x)
    wanted = tensors(ann(x))
    got = tensors(map_values(snn(x, LEVELS), lambda leaf: leaf.mean(0) if isinstance(leaf, Tensor) else leaf))
    scale = float(wanted.abs().max())
    error = (got - wanted).abs() / scale
    tolerance = 1e-9 if x.dtype == torch.float64 else 1e-4
    return {
        "verdict": "converted",
        "operations": len(found.operations),
        "spiking_layers": len(snn.layers),
        "two_images_differ_by": float((tensors(ann(x[:1])) - tensors(ann(x[1:2]))).abs().max()) / scale,
        "largest_error": float(error.max()),
        "equal": float((error <= tolerance).double().mean()),
    }


def row(name: str, chosen: argparse.Namespace, device: str) -> dict[str, object]:
    started = time.perf_counter()
    size = SIZES.get(name.partition(":")[2], chosen.size)
    dtype = getattr(torch, chosen.dtype)
    x = torch.randn(chosen.images, 3, size, size, generator=torch.Generator().manual_seed(1)).to(device, dtype)

    try:
        result = compare(settle(make(name).to(device, dtype), x), x)
    except (ValueError, RuntimeError) as error:  # refused by prepare or convert, or the model's own complaint
        result = {"verdict": "failed", "first": str(error)}
    return {"model": name, "size": size, **result, "seconds": round(time.perf_counter() - started, 1)}


def main() -> None:
    chosen = options()
    warnings.simplefilter("ignore")  # of the packages
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.allow_tf32 = False
    installed = [p for p in ("torchvision", "timm") if importlib.util.find_spec(p)]
    lists = {"torchvision": TORCHVISION, "timm": TIMM}
    names = chosen.names or [f"{package}:{name}" for package in installed for name in lists[package].split()]
    began, rows = time.monotonic(), []
    for name in names:
        if time.monotonic() - began > chosen.max_seconds:
            print(f"{name}: no time left")
            continue
        rows.append(row(name, chosen, device))
        print(line(rows[-1]), flush=True)
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)
        versions = {package: importlib.import_module(package).__version__ for package in installed}
        how = provenance(images=f"{chosen.images} random", dtype=chosen.dtype, **versions)
        (chosen.out / "record.json").write_text(json.dumps({"models": rows, "provenance": how}, indent=1) + "\n")


def line(row: dict[str, object]) -> str:
    if row["verdict"] != "converted":
        return f"{row['model']:32} {row['verdict']:10} {row['seconds']:6} s  {row['first']}"
    figures = (
        f"{row['spiking_layers']:3} spiking layers, error {row['largest_error']:.1e}, equal {row['equal']:7.2%}, "
        f"two images differ by {row['two_images_differ_by']:.1e}"
    )
    return f"{row['model']:32} {row['verdict']:10} {row['seconds']:6} s  {figures}"


if __name__ == "__main__":
    main()
