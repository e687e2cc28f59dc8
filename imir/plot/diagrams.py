"""Figures of phase diagrams; every function takes `ax=`."""

from collections.abc import Mapping

import numpy as np
import xarray as xr
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from imir.phases.store import INTERPOLATED
from imir.plot.style import COLOURS, FAILED, LINES, STYLES, axes_of
from imir.scores import REGIMES

Corpora = Mapping[str, tuple[float, float]]


def _names(diagram: xr.Dataset) -> tuple[str, str]:
    """Names of the vertical and the horizontal axis."""
    y, x = diagram["regime"].dims
    return str(y), str(x)


def regimes(diagram: xr.Dataset, corpora: Corpora | None = None, ax: Axes | None = None) -> Axes:
    """The regime of each cell, with corpora marked at their (x, y) statistics."""
    ax, (y, x) = axes_of(ax), _names(diagram)
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
    """When a score emerged, in gradient-flow time, with contours at 1, 2, 5, 10, …

    Blank cells are those where it never did.
    """
    ax, (y, x) = axes_of(ax), _names(diagram)
    mesh = (diagram[x].values, diagram[y].values, diagram[score].values)
    if np.any(mesh[2] > 0):
        drawn = ax.pcolormesh(*mesh, shading="nearest", norm="log")
        ax.figure.colorbar(drawn, ax=ax, label="gradient-flow time")
        _contours(ax, *mesh)
    _label(ax, x, y, f"emergence of {score.removesuffix('_time').upper()}")
    _mark(ax, corpora)
    return ax


def _contours(ax: Axes, x: np.ndarray, y: np.ndarray, times: np.ndarray) -> None:
    if min(times.shape) < 2:
        return
    low, high = np.nanmin(times), np.nanmax(times)
    round_numbers = np.outer(10.0 ** np.arange(np.floor(np.log10(low)), 12), (1, 2, 5)).ravel()
    levels = [t for t in round_numbers if low < t < high]
    if levels:
        lines = ax.contour(x, y, times, levels, colors="white", linewidths=1)
        ax.clabel(lines, fmt="%.0e", fontsize="small")


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
    computed = 1 - float(np.mean(diagram["status"] == INTERPOLATED))
    note = "" if computed == 1 else f"; {computed:.0%} of the cells computed, others interpolated"
    figure.suptitle(f"{diagram.attrs['task']}{note}")
    return figure


def over_time(
    diagram: xr.Dataset, cells: Mapping[str, Mapping[str, float]], ax: Axes | None = None
) -> Axes:
    """ICL (full) and IWL (thin) scores of some cells over time, by label and place."""
    ax = axes_of(ax)
    for i, (label, place) in enumerate(cells.items()):
        cell = diagram.sel(place, method="nearest")
        for name, width in (("icl", 2.0), ("iwl", 0.8)):
            (line,) = ax.plot(cell["time"], cell[f"{name}_over_time"], lw=width)
            line.set(color=LINES[i % len(LINES)], ls=STYLES[i % len(STYLES)])
            line.set_label(label if name == "icl" else "_")
    ax.set(xscale="log", xlabel="gradient-flow time", ylabel="ICL (thick) and IWL (thin) score")
    ax.legend(frameon=False)
    return ax
