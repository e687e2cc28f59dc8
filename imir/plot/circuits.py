"""Figures of circuits; every function takes `ax=`."""

from collections import Counter

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from imir.circuits.circuit import Circuit
from imir.circuits.graph import Edge, Node, edges
from imir.plot.style import LINES, axes_of

ROLES = ("previous-token", "matching", "shifting", "copying", "memorising")
COLOUR = {**dict(zip(ROLES, LINES, strict=False)), "aiding": "0.55"}
SIDES = {"query": "--", "key": "-", "output": "-", "value": ":"}
WIDEST = 6.0


def graph(circuit: Circuit, ax: Axes | None = None) -> Axes:
    """Embedding, heads and answer; each direction joins what it compares.

    A head's direction has a query side (dashed) and a key side; widths are coordinates relative to
    the largest of the same head or output, labels of negative ones begin with a minus. Dotted lines
    are the steps of the paths.
    """
    ax, joined = axes_of(ax), edges(circuit)
    place = _places(circuit, joined)
    largest: dict[Node, float] = {}
    for e in joined:
        if e.unit:
            size = abs(e.unit.coordinate)
            largest[e.target] = max(largest.get(e.target, 0.0), size)
    drawn: Counter[tuple[Node, Node]] = Counter()
    for e in joined:
        drawn[e.source, e.target] += 1
        width = WIDEST * abs(e.unit.coordinate) / largest[e.target] if e.unit else 1.0
        _edge(ax, place[e.source], place[e.target], e, max(0.8, width), drawn[e.source, e.target])
    for node, (x, y) in place.items():
        name = _title(circuit, node)
        box = {"boxstyle": "round,pad=0.4", "fc": "white", "ec": "black"}
        ax.text(x, y, name, ha="center", va="center", bbox=box, zorder=5)
    _legend(ax, {e.unit.role for e in joined if e.unit})
    depth = circuit.tie.basis.layers + 1
    ax.set(xlim=(-0.5, depth + 0.5), ylim=_limits(place), title=_heading(circuit))
    ax.axis("off")
    return ax


def _places(circuit: Circuit, joined: tuple[Edge, ...]) -> dict[Node, tuple[float, float]]:
    """Layers from left to right; heads of one layer, and neighbouring layers, apart in height."""
    depth = circuit.tie.basis.layers + 1
    nodes = {node for e in joined for node in (e.source, e.target)} | {(0, 0), (depth, 0)}
    return {
        (layer, head): (layer, 0.0 if head == 0 else 0.35 * (-1) ** layer + (head - 1) * 1.2)
        for layer, head in sorted(nodes)
    }


def _title(circuit: Circuit, node: Node) -> str:
    layer, head = node
    if head == 0:
        return "tokens and\nplaces" if layer == 0 else "answer"
    return f"layer {layer}" + (f"\nhead {head}" if circuit.tie.basis.heads > 1 else "")


def _edge(ax: Axes, start, end, e: Edge, width: float, number: int) -> None:
    bend = 0.12 * (number // 2) * (1 if number % 2 else -1)
    colour = COLOUR[e.unit.role] if e.unit else "0.7"
    arrow = {
        "arrowstyle": "-",
        "connectionstyle": f"arc3,rad={bend}",
        "linestyle": SIDES[e.side],
        "linewidth": width,
        "color": colour,
        "shrinkA": 24,
        "shrinkB": 24,
    }
    ax.annotate("", end, start, arrowprops=arrow)
    if e.unit is None or e.side == "query":
        return
    middle = np.add(start, end) / 2
    across = np.array([end[1] - start[1], start[0] - end[0]])
    x, y = middle - 0.5 * bend * across * -1
    sign = "" if e.unit.coordinate > 0 else "−"
    label = sign + e.unit.name.split(" ", 1)[1]
    box = {"boxstyle": "round,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.85}
    ax.text(x, y, label, color=colour, fontsize="small", ha="center", va="center", bbox=box)


def _legend(ax: Axes, roles: set[str]) -> None:
    known = [role for role in COLOUR if role in roles]
    handles = [Line2D([], [], color=COLOUR[role], lw=3, label=role) for role in known]
    sides = (("--", "query side"), ("-", "key side, output"), (":", "paths"))
    handles += [Line2D([], [], color="0.3", ls=style, label=label) for style, label in sides]
    ax.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=5, frameon=False
    )


def _limits(place: dict[Node, tuple[float, float]]) -> tuple[float, float]:
    heights = [y for _, y in place.values()]
    return min(heights) - 0.5, max(heights) + 0.5


def _heading(circuit: Circuit) -> str:
    units, aiding = len(circuit.units), len(circuit.aiding_units)
    return f"{units} of {len(circuit.tie.names)} directions ({aiding} aiding)"


def removals(circuit: Circuit, ax: Axes | None = None) -> Axes:
    """Loss and accuracy after each removal, with the budget."""
    ax = axes_of(ax)
    left = np.arange(len(circuit.tie.names), -1, -1)
    path = [circuit.whole, *(r.left for r in circuit.removals)]
    ax.step(left, [m.loss for m in path], where="post", color=LINES[0], label="loss (nats)")
    ax.axhline(circuit.budget, color=LINES[0], ls=":", label="budget")
    ax.set(xlabel="directions left", ylabel="loss (nats)", title="elimination")
    ax.set_xscale("symlog", linthresh=10)
    ticks = [n for n in (0, 2, 5, 10, 30, 100, 300, 1000, 3000) if n <= left[0]]
    ax.set_xticks(ticks, [str(n) for n in ticks])
    ax.invert_xaxis()
    right = ax.twinx()
    right.step(left, [m.accuracy for m in path], where="post", color=LINES[1], ls="--")
    right.set(ylabel="accuracy (dashed)", ylim=(-0.03, 1.03))
    ax.axvline(len(circuit.units), color="0.6", lw=0.8, label="circuit")
    ax.axvline(len(circuit.canonical_units), color="0.6", lw=0.8, ls="--", label="canonical units")
    ax.legend(frameon=False, loc="center left", fontsize="small")
    return ax


def circuit_figure(circuit: Circuit) -> Figure:
    """The graph above its elimination."""
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(10, 9), layout="constrained", height_ratios=(1.6, 1)
    )
    graph(circuit, ax=above)
    removals(circuit, ax=below)
    return figure
