"""Figures of a full run beside the reduced one; every function takes `ax=`."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fullmodel.confinement.departure import Departure
from imir.plot.style import COLOURS, LINES, STYLES, axes_of
from imir.solution import Solution

SHOWN = 6


def coordinates(found: Departure, reduced: Solution | None, ax: Axes | None = None) -> Axes:
    """The largest coordinates of the full run (lines), and of the reduced run (dots)."""
    ax = axes_of(ax)
    for i, which in enumerate(np.argsort(-np.max(np.abs(found.coordinates), axis=0))[:SHOWN]):
        colour = LINES[i % len(LINES)]
        style = STYLES[i % len(STYLES)]
        ax.plot(
            found.steps, found.coordinates[:, which], style, color=colour, label=found.names[which]
        )
        if reduced is not None:
            _dots(ax, found, reduced, reduced.coordinates[:, which], colour)
    ax.set(xlabel="steps", ylabel="coordinates (dots: reduced run)")
    ax.legend(frameon=False, fontsize="x-small")
    return ax


def _dots(ax: Axes, found: Departure, reduced: Solution, values, colour: str) -> None:
    """What the reduced run has at the records of the full one."""
    here = np.interp(found.steps, reduced.times, values)
    ax.plot(found.steps, here, ls="", marker=".", ms=4, color=colour)


def shares(found: Departure, ax: Axes | None = None) -> Axes:
    """What share of the weights, of their movement and of the gradient is off the manifold."""
    ax = axes_of(ax)
    for i, name in enumerate(("weights", "movement", "gradient")):
        off = 1 - getattr(found, name)[:, -1]
        ax.plot(found.steps, off, STYLES[i], color=LINES[i], label=name)
    ax.plot(found.steps, 1 - found.chance[:, -1], color="0.5", lw=1, label="random directions")
    ax.set(xlabel="steps", ylabel="share off the manifold (squared norm)", ylim=(-0.03, 1.03))
    ax.legend(frameon=False, fontsize="small")
    return ax


def learning(found: Departure, reduced: Solution | None, ax: Axes | None = None) -> Axes:
    """ICL and IWL scores of the full run (lines), and of the reduced run (dots)."""
    ax = axes_of(ax)
    for name, style in (("ICL", "-"), ("IWL", "--")):
        score, colour = getattr(found, name.lower()), COLOURS[name]
        if np.all(np.isnan(score)):
            continue
        ax.plot(found.steps, score, style, color=colour, label=name)
        if reduced is not None:
            _dots(ax, found, reduced, getattr(reduced, name.lower()), colour)
    ax.set(xlabel="steps", ylabel="score (dots: reduced run)", ylim=(-0.03, 1.03))
    ax.legend(frameon=False, fontsize="small")
    return ax


def departure_figure(found: Departure, reduced: Solution | None, title: str) -> Figure:
    """Coordinates, off-manifold shares and scores."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    coordinates(found, reduced, ax=axes[0])
    shares(found, ax=axes[1])
    learning(found, reduced, ax=axes[2])
    figure.suptitle(title)
    return figure
