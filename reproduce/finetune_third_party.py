"""Fine-tune a ReLU ResNet-20 that others trained (CIFAR-10, 91.73 %) to QCFS, and measure its spiking networks.

    python reproduce/finetune_third_party.py --weights resnet20-cifar10-relu.safetensors --data DIR --out OUT

λ starts where L levels represent the ReLU network's values best, layer by layer; then a few epochs with a teacher, the
ReLU network itself or a packaged one. The weights are those of the last epoch; the test set is measured once, at the
end, and chooses nothing. OUT receives the network as osp.save writes it, log.jsonl, and record.json.

Choices are made on images that nothing has seen. `--relu-epochs 60 --validation 0.1` trains a ReLU network of the same
kind on nine tenths of the training images and writes OUT/relu.safetensors; with these `--weights` and the same
`--validation 0.1`, settings are compared on the last tenth, and the test set is not looked at.
"""

import argparse
import json
import logging
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from relu_resnet20 import EXAMPLE, MEAN, STD, ReluResNet20, relu_resnet20
from safetensors.torch import save_file
from torch import Tensor, nn

import offspike as osp
from offspike.datasets import Dataset, load
from offspike.experiment import provenance, readouts
from offspike.preprocess import Preprocess
from offspike.thresholds import LeastError
from offspike.train import Recipe, accuracy, log_lines, train

NUMBERS = (
    "lr",
    "weight_decay",
    "warmup",
    "clip",
    "clip_mean",
    "warm_floor",
    "ema",
    "distill",
    "temperature",
    "validation",
)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--weights", type=Path, help="of the ReLU network")
    add("--relu-epochs", type=int, help="no --weights: train a ReLU network of this kind, and stop there")
    add("--teacher", help="a packaged network or a file of ours (default: the ReLU network itself)")
    add("--teacher-dtype", choices=("bfloat16", "float32"), default="float32", help="what the teacher answers in")
    add("--augment", default="crop,flip", help="comma-separated: crop,flip,autoaugment,cutout")
    add("--data", type=Path, required=True, help="the folder that holds cifar-10-batches-bin")
    add("--out", type=Path, required=True)
    add("--epochs", type=int, default=15)
    add("--levels", type=int, default=4, help="L; ρ is the same")
    add("--per", choices=("layer", "channel"), default="layer", help="what has a λ of its own")
    add("--steps", type=int, default=8, help="T of the spiking networks")
    add("--batch", type=int, default=125)
    for name in NUMBERS:
        add(f"--{name.replace('_', '-')}", type=float)
    add("--dtype", choices=("bfloat16", "float32"), default="float32")
    add("--compile", action="store_true", help="on a CPU too, where it takes a minute and then trains twice as fast")
    add("--seed", type=int, default=0)
    add("--limit", type=int, help="only so many training and test images (a smoke test)")
    chosen = parser.parse_args()
    if (chosen.weights is None) == (chosen.relu_epochs is None):
        parser.error("give --weights, or --relu-epochs to make some")
    return chosen


class Teacher(nn.Module):
    """A network of ours, which knows another mean and deviation, asked with the inputs of the one that learns."""

    def __init__(self, network: nn.Module, preprocess: Preprocess, dtype: torch.dtype) -> None:
        super().__init__()
        self.network = network.to(dtype).to(memory_format=torch.channels_last)
        self.dtype = dtype
        mean, std, own_mean, own_std = (
            torch.tensor(values)[:, None, None] for values in (MEAN, STD, preprocess.mean, preprocess.std)
        )
        self.register_buffer("scale", std / own_std)
        self.register_buffer("shift", (mean - own_mean) / own_std)

    def forward(self, x: Tensor) -> Tensor:
        answers: Tensor = self.network((x * self.scale + self.shift).to(self.dtype))
        return answers


def teacher_of(chosen: argparse.Namespace, relu: nn.Module) -> nn.Module:
    if chosen.teacher is None:
        return relu
    network = osp.load(chosen.teacher)
    return Teacher(network, network.preprocess, getattr(torch, chosen.teacher_dtype))


def recipe_of(chosen: argparse.Namespace) -> Recipe:
    """Few epochs from good weights: a small rate, weak augmentation, half of the loss from the teacher."""
    gpu = torch.cuda.is_available()
    recipe = Recipe.finetune(
        epochs=chosen.epochs, batch=chosen.batch, lr=0.05, label_smoothing=0.0, ema=0.995, distill=0.5, temperature=4.0,
        augment=tuple(chosen.augment.split(",")), init_thresholds=False, seed=chosen.seed, dtype=chosen.dtype,
        compile=gpu or chosen.compile, graph=gpu,
    )  # fmt: skip
    return replace(recipe, **{name: value for name in NUMBERS if (value := getattr(chosen, name)) is not None})


def data_of(chosen: argparse.Namespace, device: str) -> tuple[Dataset, Dataset]:
    """CIFAR-10 with the mean and deviation that the network was trained with."""
    parts = []
    for split in ("train", "test"):
        data = load("cifar10", chosen.data, split)
        assert isinstance(data, Dataset)
        parts.append(replace(data.take(slice(chosen.limit)), mean=MEAN, std=STD).to(device))
    return parts[0], parts[1]


def spiking(ann: nn.Module, test: Dataset, chosen: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Accuracy, agreement with the ANN, spikes and ticks of the spiking networks at each T."""
    results: dict[str, dict[str, object]] = {}
    for method in (osp.methods.qcfs(), osp.methods.cos(chosen.levels), osp.methods.exact(chosen.levels)):
        snn = osp.convert(ann, method, example=test.preprocess(test.images[:2]))
        batches = ((test.preprocess(x), y) for x, y in test.blocks(torch.arange(len(test)), 500))
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            report = osp.evaluate(snn, batches, steps=chosen.steps, reference=ann)
        for steps in readouts(chosen.steps):
            cost = report.cost(steps)
            results[f"{method.name} T={steps}"] = {
                "rho": cost.rho, "schedule": cost.schedule, "ticks": cost.ticks,
                "accuracy": round(100 * float(report.accuracy[steps - 1]), 2),
                "agreement": round(100 * float(report.agreement[steps - 1]), 2),
                "spikes_an_image": round(report.spikes(steps)),
            }  # fmt: skip
    return results


def train_relu(data: Dataset, chosen: argparse.Namespace) -> None:
    """A ReLU network of the same kind, for comparing settings on images that it has not seen."""
    torch.manual_seed(chosen.seed)
    recipe = replace(recipe_of(chosen), epochs=chosen.relu_epochs, lr=0.1, ema=0.0, distill=0.0, weight_decay=1e-4)
    network = ReluResNet20().to(data.images.device)
    trained = train(network, data, recipe, folder=chosen.out, resume=False, watch=log_lines)
    (chosen.out / "checkpoint.safetensors").unlink()
    weights = {name: value.contiguous() for name, value in trained.model.state_dict().items()}
    save_file(weights, chosen.out / "relu.safetensors")


def main() -> None:
    chosen = options()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data, test = data_of(chosen, device)
    if chosen.relu_epochs:
        return train_relu(data, chosen)
    relu = relu_resnet20(chosen.weights).to(device)
    calibration = data.preprocess(data.images[:: max(1, len(data) // 1000)][:1000])
    ann = osp.prepare(relu, osp.QCFS(chosen.levels), example=EXAMPLE.to(device)).to(device)
    osp.init_thresholds(ann.eval(), calibration, rule=LeastError(chosen.levels, per=chosen.per))
    recipe = recipe_of(chosen)
    print(recipe, flush=True)
    began = time.monotonic()
    teacher = teacher_of(chosen, relu) if recipe.distill else None
    trained = train(ann, data, recipe, teacher=teacher, folder=chosen.out, resume=False, watch=log_lines)
    seconds = round(time.monotonic() - began, 1)
    (chosen.out / "checkpoint.safetensors").unlink()  # only to resume from
    if not recipe.validation:
        finish(relu, ann, trained.model, test, recipe, seconds, chosen)


def finish(
    relu: nn.Module, before: nn.Module, ann: nn.Module, test: Dataset, recipe: Recipe, seconds: float,
    chosen: argparse.Namespace,
) -> None:  # fmt: skip
    """Save the network, load it again, measure, and write the record."""
    figures = {
        name: accuracy(model, test).percent for name, model in (("relu", relu), ("before", before), ("qcfs", ann))
    }
    path = chosen.out / f"resnet20-third-party-cifar10-l{chosen.levels}.safetensors"
    how = provenance(images=f"{len(test)} of CIFAR-10 test", weights="of the last epoch")
    keep = {"recipe": recipe.to_dict(), **how}
    osp.save(ann, path, preprocess={"mean": MEAN, "std": STD}, provenance=keep)
    ann = osp.load(path).to(test.images.device)
    figures["after_loading"] = accuracy(ann, test).percent
    record = {
        "what": f"a third-party ReLU ResNet-20 fine-tuned to QCFS L={chosen.levels}",
        "lambda": f"of least error per {chosen.per}, then trained",
        "ann": figures,
        "snn": spiking(ann, test, chosen),
        "training_seconds": seconds,
        "recipe": recipe.to_dict(),
        "provenance": how,
    }
    (chosen.out / "record.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    for name, row in record["snn"].items():
        print(f"{name:12} {row['accuracy']:6.2f} %  agrees {row['agreement']:6.2f} %  {row['spikes_an_image']} spikes")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
