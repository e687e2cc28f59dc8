"""Figures of training; every function takes `ax=`."""

from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fullmodel.boolean.train import Curves
from imir.plot.style import LINES, STYLES, axes_of


def learning(curves: Curves, ax: Axes | None = None) -> Axes:
    """Accuracy over all strings (thick) and loss in bits (thin) of each seed."""
    ax = axes_of(ax)
    for i in range(curves.loss.shape[1]):
        style: dict[str, Any] = {"color": LINES[i % len(LINES)], "ls": STYLES[i % len(STYLES)]}
        ax.plot(curves.steps, curves.accuracy[:, i], lw=2, label=f"seed {i}", **style)
        ax.plot(curves.steps, curves.loss[:, i] / np.log(2), lw=0.8, **style)
    ax.axhline(1, color="0.7", lw=0.8, zorder=0)
    ax.set(xlabel="steps", ylabel="accuracy (thick), loss in bits (thin)", ylim=(0, None))
    ax.legend(frameon=False, fontsize="small")
    return ax


def sensitivities(curves: Curves, ax: Axes | None = None) -> Axes:
    """Average sensitivity of each seed on its way to the wanted one."""
    ax, N = axes_of(ax), len(curves.wanted) - 1
    for i in range(curves.loss.shape[1]):
        style: dict[str, Any] = {"color": LINES[i % len(LINES)], "ls": STYLES[i % len(STYLES)]}
        ax.plot(curves.steps, curves.averages[:, i], label=f"seed {i}", **style)
    wanted = curves.wanted @ np.arange(N + 1) / np.sum(curves.wanted)
    ax.axhline(wanted, color="0.3", lw=1, ls=(0, (1, 1)), label="wanted")
    ax.set(xlabel="steps", ylabel="average sensitivity")
    ax.legend(frameon=False, fontsize="small")
    return ax


def final_profiles(curves: Curves, ax: Axes | None = None) -> Axes:
    """Profile of each seed in the end, beside the wanted one."""
    ax, n = axes_of(ax), np.arange(len(curves.wanted))
    total = np.sum(curves.wanted)
    ax.bar(n, curves.wanted / total, color="0.85", edgecolor="0.5", label="wanted")
    for i, profile in enumerate(curves.profiles[-1]):
        style: dict[str, Any] = {"color": LINES[i % len(LINES)], "ls": STYLES[i % len(STYLES)]}
        ax.plot(n, profile / total, marker="o", ms=3, label=f"seed {i}", **style)
    ax.set(xlabel="sensitivity n", ylabel="share of strings $K_n / 2^N$")
    ax.legend(frameon=False, fontsize="small")
    return ax


def training_figure(curves: Curves, title: str) -> Figure:
    """Learning, sensitivity on the way, and profiles in the end."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    learning(curves, ax=axes[0])
    sensitivities(curves, ax=axes[1])
    final_profiles(curves, ax=axes[2])
    figure.suptitle(title)
    return figure
