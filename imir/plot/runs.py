"""Figures of one run; every function takes `ax=`."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from imir.plot.style import COLOURS, LINES, STYLES, axes_of
from imir.solution import Solution


def coordinates(solution: Solution, most: int = 7, ax: Axes | None = None) -> Axes:
    """The coordinates that moved most, over time."""
    ax = axes_of(ax)
    moved = np.ptp(solution.coordinates, axis=0)
    for rank, c in enumerate(np.argsort(-moved)[:most]):
        (line,) = ax.plot(solution.times, solution.coordinates[:, c], label=solution.names[c])
        line.set(color=LINES[rank % len(LINES)], ls=STYLES[rank % len(STYLES)])
    _over_time(ax, solution, "coordinate")
    return ax


def learning(solution: Solution, ax: Axes | None = None) -> Axes:
    """ICL and IWL scores and the loss over time."""
    ax = axes_of(ax)
    for name, score, style in (("ICL", solution.icl, "-"), ("IWL", solution.iwl, "--")):
        if not np.all(np.isnan(score)):
            ax.plot(solution.times, score, style, color=COLOURS[name], label=f"{name} score", lw=2)
    ax.plot(
        solution.times, solution.loss / solution.loss[0], ":", color="0.3", label="loss / start"
    )
    _over_time(ax, solution, "score")
    return ax


def _over_time(ax: Axes, solution: Solution, ylabel: str) -> None:
    positive = solution.times[solution.times > 0]
    if solution.unit == "gradient-flow time" and positive.size > 1:
        ax.set_xscale("symlog", linthresh=float(max(positive[0], positive[-1] * 1e-4)))
    ax.set(xlabel=solution.unit, ylabel=ylabel)
    ax.legend(frameon=False, fontsize="small")


def trajectory_figure(solution: Solution) -> Figure:
    """Coordinates beside scores and loss."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    coordinates(solution, ax=left)
    learning(solution, ax=right)
    figure.suptitle(f"{solution.method}: {solution.outcome}")
    return figure
