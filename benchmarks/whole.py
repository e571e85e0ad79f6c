"""precision="int8" on the device: small networks in fixed point give the spikes and logits that a CPU gives in exact32.

A part of `gpu.py`. Also whether ``"tf32"`` gives them there, and whether replays, fused pools and pieces of time do.
A kernel may take ten seconds to compile: where the time ends, the cases that are left are named. Without a GPU it runs
through Triton's interpreter.
"""

import os
import time
from itertools import product
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import offspike as osp
from offspike.fast import joins

# method and T, the most telling first; those with more than 8 steps take several runs, which hand the potentials on
CASES = {
    "cos": (osp.methods.cos(4), 4),
    "even": (osp.methods.exact(4), 4),
    "cos, long": (osp.methods.cos(4), 16),
    "even, long": (osp.methods.exact(4), 17),
    "cos_light": (osp.methods.cos_light(4), 4),
    "first": (osp.methods.exact(8, place="first"), 8),
    "first, long": (osp.methods.exact(8, place="first"), 12),
}


def run(options: Any, device: torch.device) -> str:
    """A line for each method and network, and one for those not reached; an ArithmeticError if anything differs."""
    if device.type != "cpu":
        return _run(options, device)
    as_on_a_gpu = mock.patch.object(joins, "fuses", return_value=True)  # here alone: other parts would take for ever
    with mock.patch.dict(os.environ, TRITON_INTERPRET="1"), as_on_a_gpu:
        return _run(options, device)


def _run(options: Any, device: torch.device) -> str:
    wide = 8 if options.quick else 72
    torch.manual_seed(0)
    common: dict[str, Any] = {"classes": 5, "activation": osp.QCFS(4), "size": 8}
    networks: dict[str, nn.Module] = {
        "vgg": osp.zoo.VGG((wide, wide, "A", 2 * wide, "A"), (wide, wide), channels=3, **common),
        "resnet": osp.zoo.ResNet((wide, 2 * wide), (1, 2), **common),
    }
    images = {name: torch.randn(2 if options.quick else 9, 3, 8, 8) for name in networks}
    snapped = {name: _snapped(model, images[name]) for name, model in networks.items()}
    lines, late, wrong = [], [], False
    for (what, (method, steps)), name in product(CASES.items(), networks):
        if time.perf_counter() > options.until:
            late.append(f"{name} {what}")
            continue
        found = _compare(snapped[name], images[name], method, steps, device)
        lines.append(f"{name:6} {what:11} T={steps}: {found}")
        wrong |= not all(found.values())
        print(lines[-1], f"   [{options.until - time.perf_counter():.0f} s left]", flush=True)
        (options.out / "whole.txt").write_text("\n".join(lines))
    if late:
        lines.append(f"not reached in time: {'; '.join(late)}")
    if wrong:
        raise ArithmeticError("int8 is not exact32:\n" + "\n".join(lines))
    return "\n".join(lines)


def _snapped(model: nn.Module, x: Tensor) -> nn.Module:
    osp.init_thresholds(model.eval(), x)
    return osp.snap(model, bits=8, example=x)


def _compare(ann: nn.Module, x: Tensor, method: osp.Method, steps: int, device: torch.device) -> dict[str, bool]:
    wanted, spikes = _heard(osp.convert(ann, method, example=x), x, steps)
    snn, here = osp.convert(ann, method, example=x).to(device), x.to(device)
    found = {}
    for precision in ("tf32", "int8"):
        snn.precision = precision
        logits, others = _heard(snn, here, steps)
        found[f"{precision} spikes"] = all(torch.equal(spikes[layer], others[layer]) for layer in spikes)
        found[f"{precision} logits"] = torch.equal(logits, wanted)
    again = [torch.equal(snn(here, steps=steps).cpu(), wanted) for _ in range(4 if device.type == "cuda" else 1)]
    found["int8 unheard"] = all(again)  # pools fused, and the last one replayed
    found["int8 in pieces"] = torch.equal(snn(here, steps=steps, piece=4).cpu(), wanted)
    return found


def _heard(snn: osp.SpikingNetwork, x: Tensor, steps: int) -> tuple[Tensor, dict[str, Tensor]]:
    names, spikes = {layer: name for name, layer in snn.layers.items()}, dict[str, Tensor]()
    logits = snn(x, steps=steps, heard=lambda layer, out: spikes.update({names[layer]: out.float().cpu()}))
    return logits.cpu(), spikes
