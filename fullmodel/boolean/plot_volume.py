"""Figures of volumes; every function takes `ax=`."""

from collections.abc import Mapping
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fullmodel.boolean.volume import Volume
from imir.plot.style import LINES, STYLES, axes_of

MARKERS = ("o", "s", "^", "D", "v")


def volumes(
    found: Mapping[str, Mapping[int, Volume]],
    plain: Mapping[int, Volume] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """log₁₀ of the volume of each function against N, with bars of two standard errors.

    Filled triangles are upper bounds; crosses are plain Monte Carlo, where it has hits enough.
    """
    ax = axes_of(ax)
    for i, (name, by_length) in enumerate(found.items()):
        style: dict[str, Any] = {"color": LINES[i % len(LINES)], "ls": STYLES[i % len(STYLES)]}
        _series(ax, by_length, MARKERS[i % len(MARKERS)], name, style)
    counted = {N: v for N, v in (plain or {}).items() if v.log10_volume is not None}
    if counted:
        beside = {N + 0.12: v for N, v in counted.items()}
        _series(ax, beside, "x", "plain Monte Carlo", {"color": "0.35", "ls": ""})
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(xlabel="length N", ylabel="$\\log_{10}$ share of parameter space")
    ax.legend(frameon=False, fontsize="small")
    return ax


def _series(ax: Axes, by_length: Mapping, marker: str, label: str, style: dict) -> None:
    known = {N: v for N, v in by_length.items() if v.log10_volume is not None}
    bounded = {N: v for N, v in by_length.items() if v.log10_volume is None}
    values = [v.log10_volume for v in known.values()]
    bars = [2 * v.error for v in known.values()]
    ax.errorbar(list(known), values, bars, fmt=marker, capsize=3, mfc="white", label=label, **style)
    tops = [v.upper_bound for v in bounded.values()]
    ax.plot(list(bounded), tops, "v", color=style["color"], label="_" if known else label)


def volume_figure(
    found: Mapping[str, Mapping[int, Volume]], plain: Mapping[int, Volume], title: str
) -> Figure:
    """Volumes against length on one page."""
    figure, ax = plt.subplots(figsize=(5.6, 4), layout="constrained")
    volumes(found, plain, ax=ax)
    ax.set_title(title.replace("_", " "))
    return figure
