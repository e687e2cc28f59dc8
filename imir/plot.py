"""Figures that can be read in print and by the colour-blind; every function takes `ax=`."""

from collections.abc import Mapping

import matplotlib
import numpy as np
import xarray as xr
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from imir.scores import REGIMES
from imir.solution import Solution

# Apart for every common colour vision, and evenly apart in lightness for print.
COLOURS = {
    "neither": "#f7f7f7",
    "ICL": "#003f72",
    "IWL": "#d55e00",
    "both": "#7fc8f0",
    "transient": "#f0e442",
}
FAILED = "#000000"
# Okabe and Ito's palette, with line styles that repeat what the colours say.
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
STYLES = ("-", "--", "-.", ":")
Corpora = Mapping[str, tuple[float, float]]


def _axes(ax: Axes | None) -> Axes:
    return ax if ax is not None else plt.subplots(layout="constrained")[1]


def _names(diagram: xr.Dataset) -> tuple[str, str]:
    """Names of the vertical and the horizontal axis."""
    y, x = diagram["regime"].dims
    return str(y), str(x)


def regimes(diagram: xr.Dataset, corpora: Corpora | None = None, ax: Axes | None = None) -> Axes:
    """The regime of each cell, with corpora marked at their (x, y) statistics."""
    ax, (y, x) = _axes(ax), _names(diagram)
    colours = [FAILED, *(COLOURS[name] for name in REGIMES)]
    mesh = (diagram[x].values, diagram[y].values, diagram["regime"].values)
    ax.pcolormesh(*mesh, cmap=ListedColormap(colours), vmin=-1.5, vmax=4.5, shading="nearest")
    present = [name for i, name in enumerate(REGIMES) if np.any(mesh[2] == i)]
    handles = [Patch(facecolor=COLOURS[n], edgecolor="0.2", label=n) for n in present]
    if np.any(mesh[2] == -1):
        handles.append(Patch(facecolor=FAILED, label="solver failed"))
    _label(ax, x, y, "regime at the end of the run")
    _mark(ax, corpora)
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, -0.14), ncols=5, frameon=False)
    return ax


def emergence_times(
    diagram: xr.Dataset,
    score: str = "icl_time",
    corpora: Corpora | None = None,
    ax: Axes | None = None,
) -> Axes:
    """When a score emerged, in gradient-flow time; blank cells are those where it never did."""
    ax, (y, x) = _axes(ax), _names(diagram)
    mesh = (diagram[x].values, diagram[y].values, diagram[score].values)
    if np.any(mesh[2] > 0):
        drawn = ax.pcolormesh(*mesh, shading="nearest", norm="log")
        ax.figure.colorbar(drawn, ax=ax, label="gradient-flow time")
    _label(ax, x, y, f"emergence of {score.removesuffix('_time').upper()}")
    _mark(ax, corpora)
    return ax


def _label(ax: Axes, x: str, y: str, title: str) -> None:
    ax.set(xlabel=x.replace("_", " "), ylabel=y.replace("_", " "), title=title)


def _mark(ax: Axes, corpora: Corpora | None) -> None:
    """A star for each corpus; one beyond the axes is drawn at their border."""
    left, right, bottom, top = *ax.get_xlim(), *ax.get_ylim()
    for name, (x, y) in (corpora or {}).items():
        place = float(np.clip(x, left, right)), float(np.clip(y, bottom, top))
        ax.plot(*place, "*", ms=16, mfc="white", mec="black", clip_on=False, zorder=5)
        half = place[0] < (left + right) / 2
        ax.annotate(
            name,
            place,
            (10 if half else -10, -4),
            textcoords="offset points",
            ha="left" if half else "right",
            zorder=6,
            bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "0.6", "alpha": 0.9},
        )
    ax.set(xlim=(left, right), ylim=(bottom, top))


def phase_figure(diagram: xr.Dataset, corpora: Corpora | None = None) -> Figure:
    """Regimes beside the emergence time of in-context learning."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.8), layout="constrained")
    regimes(diagram, corpora, ax=left)
    emergence_times(diagram, "icl_time", corpora, ax=right)
    figure.suptitle(f"{diagram.attrs['task']}")
    return figure


def coordinates(solution: Solution, most: int = 7, ax: Axes | None = None) -> Axes:
    """The coordinates that moved most, over time."""
    ax = _axes(ax)
    moved = np.ptp(solution.coordinates, axis=0)
    for rank, c in enumerate(np.argsort(-moved)[:most]):
        (line,) = ax.plot(solution.times, solution.coordinates[:, c], label=solution.names[c])
        line.set(color=LINES[rank % len(LINES)], ls=STYLES[rank % len(STYLES)])
    _over_time(ax, solution, "coordinate")
    return ax


def learning(solution: Solution, ax: Axes | None = None) -> Axes:
    """ICL and IWL scores and the loss over time."""
    ax = _axes(ax)
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


def save(figure: Figure, stem: str) -> list[str]:
    """Write `stem`.png and `stem`.pdf, and close the figure."""
    files = [f"{stem}.png", f"{stem}.pdf"]
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        for file in files:
            figure.savefig(file, dpi=160)
    plt.close(figure)
    return files
