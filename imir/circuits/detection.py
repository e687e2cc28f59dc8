"""From a model's coordinates to its circuit (arXiv 2607.11875, section 6)."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from imir.basis import Element
from imir.circuits.circuit import Circuit, Measure, Removal, Unit
from imir.circuits.elimination import Elimination, downward, eliminate
from imir.circuits.measures import measured
from imir.circuits.ticket import restricted, subtie
from imir.circuits.words import describe, role
from imir.flow import Flow, gradient_flow
from imir.population import Loss, Population
from imir.ties import Tie

# Budgets as shares of the way from a loss to that of all zeros: the circuit's from the model's,
# the canonical units' from the circuit's.
SHARE, CANONICAL = 0.1, 1 / 3


def detect(
    population: Population,
    coordinates: Float[Array, " C"],
    budget: float | None = None,
    *,
    loss: Loss = "cross_entropy",
    refit: Flow | None = None,
) -> Circuit:
    """The circuit that backward elimination within a `budget` (in nats) leaves.

    By default the budget lies a tenth of the way from the model's loss to that of a model whose
    coordinates are all zero. Canonical units are those that are left when the elimination goes on
    until a third of the way from the circuit's loss is passed; the others aid. With `refit`, the
    survivors are trained by that flow, without the others, before anything is measured. Raises
    `ValueError` for a budget below the model's loss, a fresh population, or coordinates that are
    not finite.
    """
    whole = np.asarray(coordinates)
    if budget is None:
        ends = measured(population, np.stack([whole, np.zeros_like(whole)]), loss)[:, 0]
        budget = float(ends[0] + SHARE * (ends[1] - ends[0]))
    found = eliminate(population, coordinates, budget, loss)
    kept = np.flatnonzero(found.kept)
    survivors = np.where(found.kept, whole, 0.0)
    if refit is not None and kept.size:
        survivors[kept] = _refitted(population, survivors, kept, refit)
    tail = downward(population, jnp.asarray(survivors), found.kept, loss)
    return _circuit(population, whole, survivors, found, tail, budget, loss)


def _refitted(population: Population, survivors, kept, refit: Flow) -> Float[np.ndarray, " S"]:
    tie = subtie(population.tie, [population.tie.names[i] for i in kept])
    return gradient_flow(
        restricted(population, tie), jnp.asarray(survivors[kept]), refit
    ).coordinates[-1]


def _circuit(
    population, whole, survivors, found: Elimination, tail: list[int], budget: float, loss: Loss
) -> Circuit:
    tie, kept = population.tie, np.flatnonzero(found.kept)
    order = [*found.order, *tail]
    down = [*_downward(whole, found.order)[1:], *_downward(survivors, tail)[1:]]
    path = measured(population, np.stack([whole, survivors, *down]), loss)
    alone, removals = Measure(*path[1].tolist()), path[2:]
    below = np.append(alone.loss, removals[len(found.order) :, 0])
    canonical = _canonical(tail, below, found.kept)
    less = [np.where(np.arange(len(whole)) == i, 0.0, survivors) for i in kept]
    core = np.where(canonical, survivors, 0.0)
    more = [np.where(np.arange(len(whole)) == i, survivors, core) for i in kept]
    around = [
        Measure(*row) for row in measured(population, np.stack([core, *less, *more])).tolist()
    ]
    without, aided = around[1 : 1 + len(kept)], around[1 + len(kept) :]
    shifts = _shifts(tie, survivors, kept)
    units = [
        _unit(tie, int(i), survivors[i], bool(canonical[i]), shifts, w, a)
        for i, w, a in zip(kept, without, aided, strict=True)
    ]
    left = [Measure(*row) for row in removals.tolist()]
    named = [Removal(tie.names[i], m) for i, m in zip(order, left, strict=True)]
    return Circuit(
        tie, survivors, tuple(units), budget, Measure(*path[0].tolist()), alone, around[0],
        tuple(named), len(found.order), found.effort,
    )  # fmt: skip


def _downward(start: Float[np.ndarray, " C"], order) -> list[Float[np.ndarray, " C"]]:
    """The start, and the points where one more coordinate after the other is zero."""
    points = [np.array(start)]
    for i in order:
        points.append(points[-1].copy())
        points[-1][i] = 0.0
    return points


def _canonical(tail: list[int], losses, kept) -> Bool[np.ndarray, " C"]:
    """What is left when the elimination of the survivors goes on to a looser budget.

    `losses` of the circuit, then after each direction of the `tail`.
    """
    canonical = kept.copy()
    enough = losses <= losses[0] + CANONICAL * (losses[-1] - losses[0])
    canonical[tail[: int(np.argmin(enough)) - 1 if not enough.all() else 0]] = False
    return canonical


def _unit(tie: Tie, i: int, coordinate, canonical: bool, shifts, without, aided) -> Unit:
    element = _element(tie, i)
    words = describe(tie.basis, element, coordinate, shifts)
    found = role(tie.basis, element) if canonical else "aiding"
    value = float(coordinate)
    return Unit(tie.names[i], words, found, value, without, aided if not canonical else None)


def _element(tie: Tie, i: int) -> Element:
    return tie.basis.elements[tie.members[i][0]]


def _shifts(tie: Tie, coordinates, kept) -> Mapping[tuple[int, int], int]:
    """Heads whose strongest direction is to attend so many places back."""
    strongest: dict[tuple[int, int], int] = {}
    for i in kept[np.argsort(np.abs(coordinates[kept]))]:
        e = _element(tie, i)
        if e.head is None:
            continue
        strongest.pop((e.layer, e.head), None)
        shift = tie.basis.selections[e.selection].shift
        if shift is not None and not e.query_path and not e.key_path and coordinates[i] > 0:
            strongest[e.layer, e.head] = shift
    return strongest
