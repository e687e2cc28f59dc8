"""Figures of the lottery; every function takes `ax=`."""

import numpy as np
import xarray as xr
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from imir.lottery.influence import Influence
from imir.plot.diagrams import emergence_times
from imir.plot.style import axes_of

# Light to dark, apart for every common colour vision.
COLOURS = ("#f0e442", "#009e73", "#0072b2", "#d55e00", "#56b4e9", "#cc79a7", "#e69f00", "#000000")
NOBODY = "#f7f7f7"


def winners(diagram: xr.Dataset, ax: Axes | None = None) -> Axes:
    """Which circuit wins, over two directions of the initial point."""
    ax, names = axes_of(ax), list(diagram.attrs["circuits"])
    y, x = (str(d) for d in diagram["winner"].dims)
    won = diagram["winner"].values
    colours = [NOBODY, *(COLOURS[i % len(COLOURS)] for i in range(len(names)))]
    ax.pcolormesh(
        diagram[x].values, diagram[y].values, won,
        cmap=ListedColormap(colours), vmin=-1.5, vmax=len(names) - 0.5, shading="nearest",
    )  # fmt: skip
    present = [i for i in range(-1, len(names)) if np.any(won == i)]
    labels = ["nobody" if i < 0 else f"layers {names[i]}" for i in present]
    handles = [
        Patch(facecolor=colours[i + 1], edgecolor="0.2", label=label)
        for i, label in zip(present, labels, strict=True)
    ]
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, -0.14), ncols=4, frameon=False)
    ax.set(xlabel=x.replace("_", " "), ylabel=y.replace("_", " "), title="winner")
    return ax


def lottery_figure(diagram: xr.Dataset) -> Figure:
    """Winners beside the time at which in-context learning emerges."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.8), layout="constrained")
    winners(diagram, ax=left)
    emergence_times(diagram, "icl_time", ax=right)
    figure.suptitle(diagram.attrs["task"])
    return figure


def influences(found: Influence, ax: Axes | None = None) -> Axes:
    """Who stimulates (purple) and who inhibits (orange) whom, averaged over a run."""
    ax, mean = axes_of(ax), found.mean
    bound = float(np.max(np.abs(mean))) or 1.0
    drawn = ax.imshow(mean, cmap="PuOr", vmin=-bound, vmax=bound)
    ax.figure.colorbar(drawn, ax=ax, label="inhibits ← → stimulates")
    ax.set_xticks(range(len(found.names)), found.names, rotation=90)
    ax.set_yticks(range(len(found.names)), found.names)
    ax.set(xlabel="who", ylabel="whom", title="influence along the run")
    strong = np.argwhere(np.abs(mean) > 0.02 * bound)
    for i, j in strong:
        ax.text(j, i, "+" if mean[i, j] > 0 else "−", ha="center", va="center", fontsize="small")
    return ax
