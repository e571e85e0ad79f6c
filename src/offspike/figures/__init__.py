"""Figures as a paper would print them, readable in grey and by the colour-blind.

Every function returns a ``matplotlib.figure.Figure`` of its own; nothing here touches pyplot's state, and matplotlib is
imported when a figure is drawn. ``to_svg`` gives the same text for the same figure, ``save`` writes SVG or PNG.
"""

from offspike.figures.curves import (
    accuracy_against_steps,
    accuracy_against_ticks,
    agreement_against_steps,
    early_exit,
    training,
)
from offspike.figures.layers import energy, firing_rates, offset_share, offset_spikes
from offspike.figures.neuron import membrane_trace
from offspike.figures.style import save, to_svg

__all__ = [
    "accuracy_against_steps", "accuracy_against_ticks", "agreement_against_steps", "early_exit", "energy",
    "firing_rates", "membrane_trace", "offset_share", "offset_spikes", "save", "to_svg", "training",
]  # fmt: skip
