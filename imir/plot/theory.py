"""Figures of theorems: markers are measured, lines predicted; every function takes `ax=`."""

from collections.abc import Mapping

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from imir.plot.style import LINES, STYLES, axes_of
from imir.theory import Table

MARKERS = ("o", "s", "^", "D")


def suppression(table: Table, ax: Axes | None = None) -> Axes:
    """How far each coordinate's suppression is from the predicted one, as the vocabulary grows."""
    ax, V = axes_of(ax), table.column("V")
    sizes = np.unique(V)
    for i, name in enumerate(("alpha", "beta", "gamma")):
        off = np.abs(table.column(name) - table.column("predicted"))
        worst = [off[size == V].max() for size in sizes]
        ax.loglog(sizes, worst, MARKERS[i], ls=STYLES[i], color=LINES[i], label=rf"$\{name}$")
    ax.set(
        xlabel="vocabulary V",
        ylabel=r"largest deviation from $f_r + (1 - f_r) f_v$",
        title="Theorem 2: suppression by memorisation",
    )
    ax.legend(frameon=False)
    return ax


def burstiness_gradient(table: Table, ax: Axes | None = None) -> Axes:
    """Gradients relative to b, over burstiness, for each N and V."""
    ax, b = axes_of(ax), table.column("b")
    sizes = np.column_stack([table.column("N"), table.column("V")])
    for i, (N, V) in enumerate(np.unique(sizes, axis=0)):
        here = np.all(sizes == (N, V), axis=1)
        for k, name in enumerate(("alpha", "beta")):
            ratio, error = table.column(name) / b, table.column(f"se {name}") / b
            # Side by side, so that error bars do not hide each other.
            beside = (b * 2 ** (0.08 * (2 * i + k - 2)))[here]
            style = {"fmt": MARKERS[k], "capsize": 2, "mfc": "none", "color": LINES[i]}
            ax.errorbar(beside, ratio[here], error[here], **style)
        for name, style in (("gamma", "^"), ("predicted gamma", STYLES[i])):
            label = rf"$\gamma$, N = {N:.0f}, V = {V:,.0f}" if name == "gamma" else None
            ax.plot(b[here], (table.column(name) / b)[here], style, color=LINES[i], label=label)
    ax.axhline(1, color="0.7", lw=0.8, zorder=0)
    ax.set_xscale("log", base=2)
    ax.set(
        xlabel="burstiness b",
        ylabel=r"gradient / ($b$ × gradient at $b = 1$)",
        title=r"Theorem 3 ($\alpha$ circles, $\beta$ squares, $\gamma$ triangles)",
    )
    ax.legend(frameon=False, fontsize="small")
    return ax


def emergence(tables: Mapping[str, Table], ax: Axes | None = None) -> Axes:
    """Emergence times over N: one marker for each label, the predictions as lines."""
    ax = axes_of(ax)
    for i, (label, table) in enumerate(tables.items()):
        N, predicted = table.column("N"), table.column("predicted time")
        ax.loglog(N, predicted, ls=STYLES[i], color=LINES[i], label=f"{label}, predicted")
        ax.loglog(N, table.column("time"), MARKERS[i], color=LINES[i], label=label)
    ax.set(
        xlabel="blocks N",
        ylabel="emergence time (gradient flow)",
        title="Emergence of the induction head",
    )
    ax.legend(frameon=False, fontsize="small")
    return ax


def burstiness_speedup(table: Table, ax: Axes | None = None) -> Axes:
    """How many times earlier ICL emerges, over burstiness."""
    ax, b = axes_of(ax), table.column("b")
    ax.loglog(b, table.column("predicted speed-up"), STYLES[0], color="0.3", label="predicted")
    speedup, error = table.column("speed-up"), table.column("se speed-up")
    ax.errorbar(b, speedup, error, fmt=MARKERS[0], color=LINES[0], capsize=3, label="measured")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set(
        xlabel="burstiness b",
        ylabel="emergence time at b = 1 / at b",
        title="Speed-up by burstiness",
    )
    ax.legend(frameon=False)
    return ax


def theory_figure(tables: Mapping[str, Table]) -> Figure:
    """All of `imir.theory.TABLES`, as measured."""
    figure, axes = plt.subplots(2, 2, figsize=(11, 8.5), layout="constrained")
    suppression(tables["suppression"], ax=axes[0, 0])
    burstiness_gradient(tables["burstiness_gradient"], ax=axes[0, 1])
    squared, entropy = tables["emergence_squared_error"], tables["emergence_cross_entropy"]
    emergence({"squared error": squared, "cross-entropy": entropy}, ax=axes[1, 0])
    burstiness_speedup(tables["burstiness_speedup"], ax=axes[1, 1])
    return figure
