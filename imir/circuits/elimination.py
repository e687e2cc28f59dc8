"""Which directions does a model need? Backward elimination (arXiv 2607.11875, section 6).

The direction whose ablation raises the loss least goes, again and again, until every further
ablation would pass the budget τ. Exact losses decide; first-order scores say whose to ask for.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from imir.circuits.ablation import Ablations, Effort
from imir.population import Loss, Population

# Directions go together where all of them cost at most this share of what is left of the budget.
SHARE = 0.005
# Of more directions than FEW, only the WIDTH cheapest of the last full round are asked for again,
# and the FLAT with the smallest slopes; every EVERY-th round is a full one.
FEW, WIDTH, FLAT, EVERY = 8, 3, 2, 3


@dataclass(frozen=True)
class Elimination:
    """Which directions are `kept`, in which `order` the others went, and what finding out cost."""

    kept: Bool[np.ndarray, " C"]
    order: tuple[int, ...]
    effort: Effort


def eliminate(
    population: Population,
    coordinates: Float[Array, " C"],
    budget: float,
    loss: Loss = "cross_entropy",
) -> Elimination:
    """Backward elimination of thousands of directions.

    First whole groups of what costs least go, halved until they cost next to nothing; then single
    directions, the exact losses of a few deciding, chosen by slopes. Raises `ValueError` where
    the budget is below the loss of the whole model.
    """
    model, kept, whole = _begin(population, coordinates, budget, loss)
    order, value = _groups(model, kept, whole, budget)
    order += _singles(model, kept, value, budget)
    return Elimination(kept, tuple(order), model.effort)


def eliminate_plainly(
    population: Population,
    coordinates: Float[Array, " C"],
    budget: float,
    loss: Loss = "cross_entropy",
) -> Elimination:
    """The same by asking for every direction in every round, C²/2 losses: to check against."""
    model, kept, _ = _begin(population, coordinates, budget, loss)
    order = _plainly(model, kept, budget)
    return Elimination(kept, tuple(order), model.effort)


def downward(
    population: Population,
    coordinates: Float[Array, " C"],
    kept: Bool[np.ndarray, " C"],
    loss: Loss = "cross_entropy",
) -> list[int]:
    """The order in which plain elimination would ablate the `kept` directions, all of them."""
    return _plainly(Ablations(population, jnp.asarray(coordinates), loss), kept.copy(), np.inf)


def _plainly(model: Ablations, kept: Bool[np.ndarray, " C"], budget: float) -> list[int]:
    order: list[int] = []
    while kept.any():
        some = np.flatnonzero(kept)
        values = model.flipping_each(kept, some)
        if values.min() > budget:
            break
        order.append(int(some[np.argmin(values)]))
        kept[order[-1]] = False
    return order


def select(
    population: Population,
    coordinates: Float[Array, " C"],
    budget: float,
    loss: Loss = "cross_entropy",
) -> Elimination:
    """Forward selection from nothing, as a cross-check: the direction that lowers the loss most
    comes, until the budget is met. `order` is the order in which they came.

    A circuit of several directions of which none helps without the others is found only by luck.
    """
    model, *_ = _begin(population, coordinates, budget, loss)
    kept, order, value = np.zeros(len(coordinates), bool), [], np.inf
    while value > budget and not kept.all():
        some = np.flatnonzero(~kept)
        values = model.flipping_each(kept, some)
        value = float(values.min())
        order.append(int(some[np.argmin(values)]))
        kept[order[-1]] = True
    return Elimination(kept, tuple(order), model.effort)


def _begin(
    population, coordinates, budget: float, loss: Loss
) -> tuple[Ablations, Bool[np.ndarray, " C"], float]:
    """The model, a mask that keeps everything, and the loss of the whole."""
    if population.kind == "fresh":
        raise ValueError("Argument `population` must be exact or fixed for a circuit, not fresh.")
    if not np.all(np.isfinite(coordinates)):
        raise ValueError("Argument `coordinates` must be finite, but is not.")
    model = Ablations(population, jnp.asarray(coordinates), loss)
    kept = np.ones(len(coordinates), bool)
    whole = model.one(kept)
    if not whole <= budget:
        raise ValueError(
            f"Argument `budget` must be at least the whole model's loss {whole:.6g}, "
            f"but is {budget:.6g}."
        )
    return model, kept, whole


def _groups(
    model: Ablations, kept: Bool[np.ndarray, " C"], value: float, budget: float
) -> tuple[list[int], float]:
    """Ablate in `kept` the largest halves, quarters, … that cost nothing together, of those that
    cost least alone (a saturated model has no slopes to tell); also the loss that is left."""
    order: list[int] = []
    alone = model.flipping_each(kept, np.arange(len(kept)))
    while True:
        group, value = _negligible(model, kept, alone, value, budget)
        if not group.size:
            return order, value
        kept[group] = False
        order += group.tolist()


def _negligible(
    model: Ablations,
    kept: Bool[np.ndarray, " C"],
    losses: Float[np.ndarray, " C"],
    value: float,
    budget: float,
) -> tuple[Int[np.ndarray, " g"], float]:
    """A group that can go together, and the loss without it; an empty one where there is none."""
    some = np.flatnonzero(kept)
    some = some[np.argsort(losses[some], kind="stable")]
    size = len(some) // 2
    while size > 1:
        fewer = kept.copy()
        fewer[some[:size]] = False
        without = model.one(fewer)
        if without - value <= SHARE * (budget - value):
            return some[:size], without
        size //= 2
    return some[:0], value


def _singles(
    model: Ablations, kept: Bool[np.ndarray, " C"], value: float, budget: float
) -> list[int]:
    """Ablate in `kept` one direction after the other, from this loss on."""
    order: list[int] = []
    rise = np.full(len(kept), np.inf)
    while kept.any():
        some = _candidates(model, kept, rise, whole=len(order) % EVERY == 0)
        rise[some] = model.flipping_each(kept, some) - value
        best = some[np.argmin(rise[some])]
        if value + rise[best] > budget:
            rest = np.setdiff1d(np.flatnonzero(kept), some)
            if rest.size:
                rise[rest] = model.flipping_each(kept, rest) - value
                best = rest[np.argmin(rise[rest])]
            if value + rise[best] > budget:
                break
        kept[best] = False
        value += float(rise[best])
        order.append(int(best))
    return order


def _candidates(
    model: Ablations, kept: Bool[np.ndarray, " C"], rise: Float[np.ndarray, " C"], whole: bool
) -> Int[np.ndarray, " s"]:
    """Directions whose ablation may be the cheapest: by their last exact rise, and by slope."""
    some = np.flatnonzero(kept)
    if whole or len(some) <= FEW:
        return some
    slopes = np.abs(model.slopes(kept))
    cheapest = some[np.argsort(rise[some], kind="stable")[:WIDTH]]
    flattest = some[np.argsort(slopes[some], kind="stable")[:FLAT]]
    return np.union1d(cheapest, flattest)
