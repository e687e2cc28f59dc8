"""Figures that can be read in print and by the colour-blind; every function takes `ax=`."""

from imir.plot.circuits import circuit_figure, graph, removals
from imir.plot.diagrams import emergence_times, over_time, phase_figure, regimes
from imir.plot.lottery import influences, lottery_figure, winners
from imir.plot.runs import coordinates, learning, trajectory_figure
from imir.plot.style import COLOURS, LINES, STYLES, save
from imir.plot.theory import (
    burstiness_gradient,
    burstiness_speedup,
    emergence,
    suppression,
    theory_figure,
)

__all__ = [
    "COLOURS",
    "LINES",
    "STYLES",
    "burstiness_gradient",
    "burstiness_speedup",
    "circuit_figure",
    "coordinates",
    "emergence",
    "emergence_times",
    "graph",
    "influences",
    "learning",
    "lottery_figure",
    "over_time",
    "phase_figure",
    "regimes",
    "removals",
    "save",
    "suppression",
    "theory_figure",
    "trajectory_figure",
    "winners",
]
