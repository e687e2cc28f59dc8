"""Figures of sensitivities; every function takes `ax=`."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fullmodel.boolean.ensemble import Ensemble
from fullmodel.boolean.sensitivity import Estimate, Sensitivity
from imir.plot.style import LINES, STYLES, axes_of

MAP = "cividis"


def profile(found: Sensitivity | Estimate, ax: Axes | None = None) -> Axes:
    """Share of strings of each sensitivity; with intervals where it is estimated."""
    ax = axes_of(ax)
    if isinstance(found, Estimate):
        _bars(ax, 0, found.profile, found.profile_interval)
    else:
        _bars(ax, 0, found.profile / np.sum(found.profile))
    ax.set(xlabel="sensitivity n", ylabel="share of strings $K_n / 2^N$")
    return ax


def influences(found: Sensitivity | Estimate, ax: Axes | None = None) -> Axes:
    """Share of strings for which each bit matters."""
    ax = axes_of(ax)
    _bars(ax, 1, found.influences, getattr(found, "influences_interval", None))
    ax.set(xlabel="bit i", ylabel="influence $I_i$", ylim=(0, 1.05))
    return ax


def _bars(ax: Axes, first: int, shares: np.ndarray, interval: np.ndarray | None = None) -> None:
    error = None if interval is None else np.abs(interval - shares)
    ax.bar(np.arange(first, first + len(shares)), shares, color=LINES[0], yerr=error, capsize=2)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def profile_figure(name: str, found: Sensitivity | Estimate) -> Figure:
    """Profile and influences of one function."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    profile(found, ax=left)
    influences(found, ax=right)
    figure.suptitle(f"{name} on {len(found.influences)} bits")
    return figure


def profiles(ensemble: Ensemble, ax: Axes | None = None) -> Axes:
    """Stacked histogram: one column a function, one colour a sensitivity, most sensitive last."""
    ax = axes_of(ax)
    order = np.lexsort((ensemble.zeros, ensemble.averages))
    shares = ensemble.profiles[order] / np.sum(ensemble.profiles, axis=1)[order, None]
    edges = np.linspace(0, 1, len(shares) + 1)
    tops = np.cumsum(shares, axis=1)
    colours = _colours(shares.shape[1])
    for n in range(shares.shape[1]):
        below = tops[:, n - 1] if n else np.zeros(len(shares))
        ax.stairs(tops[:, n], edges, baseline=below, fill=True, color=colours(n), lw=0)
    ax.set(xlim=(0, 1), ylim=(0, 1), title=ensemble.name.replace("_", " "))
    ax.set(xlabel="functions, by average sensitivity", ylabel="share of strings")
    ax.text(
        0.97,
        0.05,
        f"{100 * ensemble.share:.1f} % have $K_0 > 0$",
        ha="right",
        transform=ax.transAxes,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85},
    )
    return ax


def _colours(count: int) -> ListedColormap:
    return ListedColormap(matplotlib.colormaps[MAP](np.linspace(0, 1, count)))


def zero_counts(
    ensembles: Sequence[Ensemble], bound: float | None = None, ax: Axes | None = None
) -> Axes:
    """Share of functions with at least k strings of sensitivity zero, over k."""
    ax = axes_of(ax)
    for rank, ensemble in enumerate(ensembles):
        at_least = 1 - np.arange(len(ensemble.zeros)) / len(ensemble.zeros)
        (line,) = ax.step(np.sort(ensemble.zeros), at_least, where="pre")
        line.set(color=LINES[rank % len(LINES)], ls=STYLES[rank % len(STYLES)])
        line.set_label(ensemble.name.replace("_", " "))
    if bound is not None and bound >= 1:
        ax.axvline(bound, color="0.4", lw=1, label="bound of Theorem 4.5")
    ax.set_xscale("symlog", linthresh=1)
    ax.set(xlabel="k", ylabel="share of functions with $K_0 ≥ k$", ylim=(0, 1.05), xlim=(0, None))
    ax.legend(frameon=False, fontsize="small", loc=(0.02, 0.62))
    return ax


def random_figure(ensembles: Sequence[Ensemble], bound: float | None = None) -> Figure:
    """The profiles of each ensemble side by side, and how many insensitive strings they have."""
    columns = -(-(len(ensembles) + 1) // 2)
    size = (4.2 * columns, 7.2)
    figure, grid = plt.subplots(2, columns, figsize=size, layout="constrained", squeeze=False)
    axes = list(grid.flat)
    for ensemble, ax in zip(ensembles, axes, strict=False):
        profiles(ensemble, ax=ax)
    zero_counts(ensembles, bound, ax=axes[len(ensembles)])
    for ax in axes[len(ensembles) + 1 :]:
        ax.set_axis_off()
    _colour_bar(figure, axes[: len(ensembles)], ensembles[0].profiles.shape[1])
    return figure


def _colour_bar(figure: Figure, axes: list[Axes], count: int) -> None:
    norm = BoundaryNorm(np.arange(count + 1) - 0.5, count)
    ticks = np.arange(0, count, max(1, count // 10))
    shades = ScalarMappable(norm, _colours(count))
    figure.colorbar(shades, ax=axes, ticks=ticks, label="sensitivity n", shrink=0.6)
