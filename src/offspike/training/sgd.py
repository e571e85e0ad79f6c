"""SGD whose every number is a tensor, so that a captured CUDA graph can replay it, and which never waits."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from offspike.activations import Bounded
from offspike.training.recipe import Recipe

__all__ = ["SGD"]

MEMORY = 0.99  # of the running mean of the gradient's norm, a step


def _decayed(model: nn.Module, decay_all: bool) -> set[int]:
    """The parameters that weight decay applies to: weights of two or more dimensions that are not a λ."""
    spared = {id(m.log2_lam) for m in model.modules() if isinstance(m, Bounded)}
    return {id(p) for p in model.parameters() if decay_all or (p.ndim > 1 and id(p) not in spared)}


def _gradient(p: Tensor) -> Tensor:
    """Of a parameter, laid out as it is; zeros where a backward pass has not come by."""
    if p.grad is None:
        return torch.zeros_like(p)
    return p.grad if p.grad.stride() == p.stride() else torch.empty_like(p).copy_(p.grad)


class SGD:
    """Momentum, Nesterov, weight decay, clipping of the whole gradient's norm, and an average of the weights.

    ::

        g ← g·min(1, clip/‖g‖) + wd·w        m ← μ·m + g        w ← w − lr·(g + μ·m  if nesterov else  m)

    With ``clip_mean`` = c also ``g ← g·min(1, c·n/‖g‖)``, where n is the running mean of the norm after that.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        decayed = _decayed(model, recipe.decay_all)
        self.recipe = recipe
        self.names = [n for n, _ in named]
        self.params: list[Tensor] = [p for _, p in named]
        self.momenta = [torch.zeros_like(p) for p in self.params]
        self.decayed = [i for i, p in enumerate(self.params) if id(p) in decayed]
        self.spared = [i for i, p in enumerate(self.params) if id(p) not in decayed]
        self.lr = torch.zeros((), device=self.params[0].device)
        self.mean_norm = torch.full_like(self.lr, torch.inf)
        state = {n: t for n, t in model.state_dict(keep_vars=True).items() if t.is_floating_point() and recipe.ema}
        self.averaged = list(state.values())
        self.averages = {n: t.detach().clone() for n, t in state.items()}

    @torch.no_grad()
    def step(self) -> Tensor:
        """Use the gradients that a backward pass has left; returns their norm before clipping."""
        recipe = self.recipe
        grads = [_gradient(p) for p in self.params]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        scale = (norm / self._bounded(norm).clamp(min=1e-12)).clamp(min=1)
        for chosen, decay in ((self.decayed, recipe.weight_decay), (self.spared, 0.0)):
            if chosen:
                torch._fused_sgd_(  # w, g and m are read once and written once
                    [self.params[i] for i in chosen],
                    [grads[i] for i in chosen],
                    [self.momenta[i] for i in chosen if recipe.momentum],
                    weight_decay=decay, momentum=recipe.momentum, lr=self.lr, dampening=0.0, nesterov=recipe.nesterov,
                    maximize=False, is_first_step=False, grad_scale=scale,
                )  # fmt: skip
        if self.averages:
            torch._foreach_lerp_(list(self.averages.values()), self.averaged, 1 - recipe.ema)
        return norm

    def _bounded(self, norm: Tensor) -> Tensor:
        """What the recipe lets pass of a norm; it joins the running mean, which the first one sets."""
        if self.recipe.clip:
            norm = norm.clamp(max=self.recipe.clip)
        if not self.recipe.clip_mean:
            return norm
        bounded = torch.minimum(norm, self.recipe.clip_mean * self.mean_norm)
        joined = torch.lerp(self.mean_norm, bounded, 1 - MEMORY)
        self.mean_norm.copy_(torch.where(self.mean_norm.isinf(), norm, joined))
        return bounded

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a later run needs."""
        state = {f"momentum.{n}": m for n, m in zip(self.names, self.momenta, strict=True)}
        if self.recipe.clip_mean:
            state["mean_norm"] = self.mean_norm
        return state | {f"average.{n}": a for n, a in self.averages.items()}

    @torch.no_grad()
    def load(self, state: dict[str, Tensor]) -> None:
        """Take up where :meth:`state` left off."""
        for name, value in self.state().items():
            value.copy_(state[name])

    def result(self, model: nn.Module) -> nn.Module:
        """The model to measure and to keep: a copy with the averaged weights, or itself if none are kept."""
        if not self.averages:
            return model
        copy = deepcopy(model)
        copy.load_state_dict(self.averages, strict=False)
        return copy
