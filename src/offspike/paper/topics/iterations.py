"""The passes that Table 3, Table S2 and the figures on offset spikes share: θ/2, COS once and iterated, exact."""

from offspike import methods
from offspike.methods import Method
from offspike.paper.cells import Cell
from offspike.paper.setting import Setting

__all__ = ["doubles", "line_up", "singles"]


def line_up(setting: Setting) -> dict[str, Method]:
    """In the paper's order; "exact" needs no iterations."""
    iterated = {f"COS ×{n}" if n > 1 else "COS": methods.cos(setting.levels, iterations=n) for n in (1, 2, 4)}
    return {"baseline (θ/2)": methods.qcfs(), **iterated, "exact": methods.exact(setting.levels)}


def singles(setting: Setting) -> list[Cell]:
    """In float32."""
    return [setting.offsets(net, method) for net in setting.nets for method in line_up(setting).values()]


def doubles(setting: Setting) -> list[Cell]:
    """In float64, for those that should leave nothing: what rounding has to do with the remainder."""
    chosen = [line_up(setting)[name] for name in ("COS ×4", "exact")]
    return [setting.offsets(net, method, double=True) for net in setting.nets for method in chosen]
