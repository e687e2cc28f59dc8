"""Figures of departures; every function takes `ax=`."""

from collections.abc import Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, ScalarFormatter

from fullmodel.depart.adam import Confinement
from fullmodel.depart.attraction import Attraction
from fullmodel.depart.laws import Law
from fullmodel.depart.regimes import ENDS, Confusion, Scatter
from fullmodel.depart.table import Row
from imir.plot.style import LINES, STYLES, axes_of

MARKERS = ("o", "s", "^", "D", "v")


def captured(rows: Sequence[Row], ax: Axes | None = None) -> Axes:
    """Share of the movement in the span, in the canonical directions, and in random ones."""
    ax, places = axes_of(ax), np.arange(len(rows))
    bars = [r.scatter for r in rows]
    ax.errorbar(
        [r.movement for r in rows], places, xerr=bars, fmt="o", color=LINES[0], label="span"
    )
    canonical = [r.canonical for r in rows]
    ax.plot(canonical, places, "^", mfc="none", color=LINES[1], label="canonical directions")
    ax.plot([r.chance for r in rows], places, "|", ms=9, color="0.4", label="random span")
    ax.set_yticks(places, [r.name for r in rows], fontsize="small")
    ax.set(xlabel="share of the movement (squared norm)", xlim=(-0.03, 1.03))
    ax.margins(y=0.02)
    ax.invert_yaxis()
    ax.grid(axis="y", color="0.9")
    ax.legend(frameon=False, fontsize="small", loc="lower center", ncols=3, bbox_to_anchor=(0.4, 1))
    return ax


def laws(found: Sequence[Law], ax: Axes | None = None) -> Axes:
    """Measured values over batch, width or length (markers), and the fitted powers (lines)."""
    ax = axes_of(ax)
    for i, law in enumerate(found):
        x, y, colour = np.array(law.x), np.array(law.y), LINES[i % len(LINES)]
        label = f"{law.name}: {law.exponent:.2f} ± {law.error:.2f}"
        ax.loglog(x, y, MARKERS[i % len(MARKERS)], mfc="none", color=colour, label=label)
        through = np.exp(np.mean(np.log(y)) + law.exponent * (np.log(x) - np.mean(np.log(x))))
        ax.loglog(x, through, STYLES[i % len(STYLES)], color=colour)
    ax.set(xlabel="batch size, width or length", ylabel="measured")
    ax.legend(frameon=False, fontsize="x-small")
    return ax


def attracted(found: Sequence[Attraction], relative: str, ax: Axes | None = None) -> Axes:
    """`of_start` or `of_movement` over steps: medians over seeds, bars from least to most."""
    ax = axes_of(ax)
    for i, one in enumerate(found):
        values = getattr(one, relative)
        middle, steps = np.median(values, axis=0), one.steps[-values.shape[1] :]
        bars = middle - np.min(values, axis=0), np.max(values, axis=0) - middle
        style = {"color": LINES[i], "ls": STYLES[i % len(STYLES)], "capsize": 2}
        ax.errorbar(steps, middle, bars, label=f"weight decay {one.decay:g}", **style)
    beside = {"of_start": "that at the start", "of_movement": "the way travelled"}[relative]
    ax.set(xlabel="steps", ylabel=f"off-span norm over {beside}")
    if relative == "of_movement":
        ax.set_yscale("log")
    ax.legend(frameon=False, fontsize="small")
    return ax


def confinement(found: Sequence[Confinement], ax: Axes | None = None) -> Axes:
    """Off-manifold share of the way over Adam's ε, and what still counts as rounding."""
    ax = axes_of(ax)
    for i, one in enumerate(found):
        label = one.precision
        ax.loglog(one.epsilons, one.drift, MARKERS[i] + STYLES[i], color=LINES[i], label=label)
        ax.axhline(one.tolerance, color=LINES[i], lw=0.8, ls=":")
    ax.set(xlabel="ε of Adam", ylabel="off-manifold share of the way (dotted: rounding)")
    ax.legend(frameon=False)
    return ax


def predictions(found: dict[str, Scatter], ax: Axes | None = None) -> Axes:
    """Emergence of full runs against that of reduced ones."""
    ax = axes_of(ax)
    for i, (name, one) in enumerate(found.items()):
        label = f"{name}: median error {100 * one.median_error:.0f}%, ρ = {one.correlation:.2f}"
        style = {"mfc": "none", "color": LINES[i], "label": label}
        ax.loglog(one.observed, one.predicted, MARKERS[i], ls="", **style)
    ends = ax.get_xlim()
    ax.plot(ends, ends, color="0.6", lw=1, zorder=0)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(LogLocator(subs=(2, 4, 6)))
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_formatter(ScalarFormatter())
    ax.set(xlabel="steps to ICL, full run", ylabel="steps to ICL, reduced run")
    ax.legend(frameon=False, fontsize="small")
    return ax


def confusion(found: Confusion, ax: Axes | None = None) -> Axes:
    """Runs by the regime they ended in, and by the one predicted."""
    ax = axes_of(ax)
    ax.imshow(found.counts, cmap="Greys", vmin=0, vmax=1.4 * max(1, found.counts.max()))
    for (i, j), count in np.ndenumerate(found.counts):
        ax.text(j, i, str(count), ha="center", va="center")
    ax.set_xticks(range(len(ENDS)), ENDS)
    ax.set_yticks(range(len(ENDS)), ENDS)
    ax.set(xlabel="reduced run", ylabel="full run")
    ax.set_title(f"{found.name}\n{100 * found.agreement:.0f}% as predicted", fontsize="medium")
    return ax


def table_figure(rows: Sequence[Row], found: dict[str, Scatter]) -> Figure:
    """The table of departures, and how well emergence was predicted."""
    size = 14, 0.23 * len(rows) + 2
    figure, axes = plt.subplots(1, 2, figsize=size, layout="constrained")
    captured(rows, ax=axes[0])
    predictions(found, ax=axes[1])
    return figure


def attraction_figure(found: Sequence[Attraction]) -> Figure:
    """What is off the span, over its start and over the way travelled."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for ax, relative in zip(axes, ("of_start", "of_movement"), strict=True):
        attracted(found, relative, ax=ax)
    return figure


def regimes_figure(found: Sequence[Confusion]) -> Figure:
    """Confusion matrices side by side."""
    figure, axes = plt.subplots(1, len(found), figsize=(4.5 * len(found), 4), layout="constrained")
    for ax, one in zip(np.atleast_1d(axes), found, strict=True):
        confusion(one, ax=ax)
    return figure
