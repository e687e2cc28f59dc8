"""Rival induction circuits: one for each pair of layers (arXiv 2607.11875, section 5).

    alpha_a    layer a attends to the token before
    beta_ab    layer b finds the place where layer a wrote the query's token
    gamma_b    the output copies what layer b read

A circuit a > b is alpha_a, beta_ab, gamma_b. Which one wins is decided by the initial point.
"""

from collections.abc import Mapping, Sequence
from functools import cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from imir.basis import Element, Path, basis_of
from imir.circuits.ablation import losses
from imir.population import Loss, Population
from imir.tasks.task import Task
from imir.ties import Tie

Circuits = Mapping[str, Sequence[str]]
# No circuit has won where the loss stays above this share of that of all zeros.
LEARNED = 0.5
NOBODY = -1


@cache
def rivals(task: Task, layers: int) -> Tie:
    """alpha_a, beta_ab and gamma_b for all layers a < b, in the one-hot frame, one head each.

    Beside them `self_a`, by which layer a attends to the query's own token, `copy_a` for the output
    of a layer that ends no circuit, and nothing else.
    """
    if layers < 2:
        raise ValueError(f"Argument `layers` must be at least 2 for a circuit, but is {layers}.")
    basis = basis_of(task, layers, 1, "onehot")
    members: dict[str, list[int]] = {}
    for i, element in enumerate(basis.elements):
        symbol = basis.selections[element.selection]
        name = _name(element, symbol.name.split("[")[0], symbol.shift)
        if name:
            members.setdefault(name, []).append(i)
    return Tie(basis, tuple(members), tuple(map(tuple, members.values())))


def _name(e: Element, symbol: str, shift: int | None) -> str | None:
    u, v = e.query_path, e.key_path
    if e.head is None:
        return f"{'gamma' if v[0][0] > 1 else 'copy'}{v[0][0]}" if _single(v, symbol) else None
    if u:
        return None
    if not v:
        return f"alpha{e.layer}" if shift == 1 else f"self{e.layer}" if symbol == "I" else None
    return f"beta{v[0][0]}{e.layer}" if _single(v, symbol) else None


def _single(path: Path, symbol: str) -> bool:
    return len(path) == 1 and symbol == "I"


def rival_circuits(layers: int) -> dict[str, tuple[str, ...]]:
    """Coordinates of the circuit of every pair of layers, by `a>b`."""
    pairs = [(a, b) for b in range(2, layers + 1) for a in range(1, b)]
    return {f"{a}>{b}": (f"alpha{a}", f"beta{a}{b}", f"gamma{b}") for a, b in pairs}


def masks(tie: Tie, circuits: Circuits) -> Float[np.ndarray, "K C"]:
    """1 where a coordinate belongs to a circuit; refuses unknown names."""
    for name in (name for names in circuits.values() for name in names):
        if name not in tie.names:
            raise ValueError(
                f"Argument `circuits` must name coordinates among {', '.join(tie.names[:8])}, "
                f"but has {name!r}."
            )
    return np.array([[name in own for name in tie.names] for own in circuits.values()], float)


def leads(
    population: Population,
    circuits: Circuits,
    points: Float[np.ndarray, "N C"],
    loss: Loss = "cross_entropy",
) -> Float[np.ndarray, "N K"]:
    """How much of the loss of all zeros each circuit alone takes away: 1 all of it, 0 nothing."""
    own = masks(population.tie, circuits)
    rows = (own[None] * points[:, None]).reshape(-1, points.shape[1])
    zero = _losses(population, np.zeros_like(rows[:1]), loss)[0]
    return 1 - _losses(population, rows, loss).reshape(len(points), -1) / zero


def winners(
    population: Population,
    circuits: Circuits,
    points: Float[np.ndarray, "N C"],
    loss: Loss = "cross_entropy",
) -> Int[np.ndarray, " N"]:
    """Number of the circuit that does best alone at each point; −1 where the model has not learned,
    that is, where its loss is above half of that of all zeros."""
    zero, *whole = _losses(population, np.vstack([np.zeros_like(points[:1]), points]), loss)
    best = np.argmax(leads(population, circuits, points, loss), axis=1)
    return np.where(np.array(whole) <= LEARNED * zero, best, NOBODY)


def _losses(population: Population, points: Float[np.ndarray, "M C"], loss: Loss):
    """Losses at any points: masks need not be zero or one."""
    return losses(population, jnp.ones(points.shape[1]), points, loss)
