"""Figures of blowup and influence; every function takes `ax=`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fullmodel.boolean.blowup import Influences, blowup_bound, exponent
from imir.plot.style import LINES, STYLES, axes_of

MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def influences(found: Mapping[float, Sequence[Influences]], ax: Axes | None = None) -> Axes:
    """Influence of one bit over N for each ε: means with two standard errors, and the fit."""
    ax = axes_of(ax)
    for i, (epsilon, runs) in enumerate(found.items()):
        N = np.array([r.architecture.length for r in runs])
        rows = np.array([r.influence for r in runs])
        means, errors = rows.mean(1), 2 * rows.std(1, ddof=1) / np.sqrt(rows.shape[1])
        style: dict[str, Any] = {"color": LINES[i % len(LINES)]}
        label = f"ε = {epsilon:g}"
        if len(N) > 1:
            slope, _ = exponent(N, rows)
            label += f", $N^{{{slope:.2f}}}$"
            center = np.exp(np.mean(np.log(means)) - slope * np.mean(np.log(N)))
            ax.plot(N, center * N**slope, ls=STYLES[i % len(STYLES)], **style)
        ax.errorbar(N, means, errors, fmt=MARKERS[i % 7], mfc="white", capsize=3, **style)
        ax.plot([], [], marker=MARKERS[i % 7], mfc="white", ls=STYLES[i % 4], label=label, **style)
    ax.set(
        xscale="log", yscale="log", xlabel="length N", ylabel="influence of one bit on the logit"
    )
    lengths = [r.architecture.length for r in next(iter(found.values()))]
    ax.set_xticks(lengths, [str(N) for N in lengths])
    ax.set_xticks([], minor=True)
    ax.legend(frameon=False, fontsize="small")
    return ax


def blowups(found: Mapping[float, Sequence[Influences]], ax: Axes | None = None) -> Axes:
    """Median and largest blowup of the longest strings for each ε, beside the bound."""
    ax = axes_of(ax)
    epsilons = [e for e in found if e > 0]
    last = {e: found[e][-1] for e in found}
    for i, (name, of) in enumerate((("median", np.median), ("largest", np.max))):
        values = [of(last[e].blowup) for e in epsilons]
        ax.loglog(epsilons, values, MARKERS[i], ls=STYLES[i], color=LINES[i], label=name)
        if 0 in found:
            label = f"{name} at ε = 0"
            ax.axhline(of(last[0].blowup), color=LINES[i], lw=0.8, ls=STYLES[2 + i], label=label)
    bounds = [blowup_bound(last[e].architecture) for e in epsilons]
    ax.loglog(epsilons, bounds, color="0.3", ls=":", label=r"bound $(1 + 1/\sqrt{ε})^S$")
    ax.set(xlabel="ε", ylabel="blowup β")
    ax.legend(frameon=False, fontsize="small")
    return ax


def blowup_figure(found: Mapping[float, Sequence[Influences]]) -> Figure:
    """Influence over N beside blowup over ε."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    influences(found, ax=left)
    blowups(found, ax=right)
    return figure
