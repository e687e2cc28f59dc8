"""Discrete optimisers in coordinates: the full model's steps, on the natural gradient."""

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Key

from imir.flow.gradient import Start, start_of
from imir.flow.metric import inverse
from imir.population import Loss, Population, mean_loss, needed
from imir.scores import Probes, halves, scores
from imir.solution import RunFailure, Solution


@dataclass(frozen=True)
class Optimizer:
    """A discrete optimiser, for coordinates and for full weights alike.

    SGD and momentum commute with every frame. Adam acts on single entries, so only coordinates in
    the one-hot frame, which are the entries of their orbitals, follow it. There its `epsilon`
    matters: with 1e-3 the full model stays on the manifold, with 1e-8 it multiplies rounding noise
    in directions whose gradient is exactly zero.
    """

    name: Literal["sgd", "momentum", "adam"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    epsilon: float = 1e-3

    def optax(self) -> optax.GradientTransformation:
        if self.name == "adam":
            return optax.adamw(self.learning_rate, eps=self.epsilon, weight_decay=self.weight_decay)
        momentum = self.momentum if self.name == "momentum" else None
        decay = optax.add_decayed_weights(self.weight_decay)
        return optax.chain(decay, optax.sgd(self.learning_rate, momentum))


def descend(
    population: Population,
    start: Start,
    optimizer: Optimizer,
    steps: int,
    *,
    loss: Loss = "cross_entropy",
    probes: Probes | None = None,
    key: Key[Array, ""] | None = None,
) -> Solution:
    """Discrete steps on the natural gradient (TᵀGT)⁻¹ ∇_φ L: the full model's steps in coordinates.

    A fresh population needs a `key`. Raises `ValueError` for Adam outside the one-hot frame,
    `RunFailure` where the coordinates stop being finite.
    """
    tie = population.tie
    if optimizer.name == "adam" and tie.basis.frame != "onehot":
        raise ValueError(
            "Argument `optimizer` must be sgd or momentum in the centered frame, but is adam."
        )
    keys = None
    if population.kind == "fresh":
        keys = jax.random.split(needed(key), steps)
    path, losses, reached = _descend(
        population, optimizer, steps, loss, probes, start_of(tie, start), inverse(tie.metric), keys
    )
    return _discrete_solution(
        tie, optimizer, np.asarray(halves(probes)), *map(np.asarray, (path, losses, reached))
    )


@eqx.filter_jit
def _descend(population, optimizer, steps, loss, found, start, inverse_metric, keys):
    tie, transform = population.tie, optimizer.optax()

    def step(state, key):
        y, memory = state
        seen = population.at(key)
        value, gradient = jax.value_and_grad(lambda c: mean_loss(tie, c, seen, loss))(y)
        update, memory = transform.update(inverse_metric @ gradient, memory, y)
        reached = scores(found, tie, y, loss)
        return (optax.apply_updates(y, update), memory), (y, value, reached)

    (last, _), over_time = jax.lax.scan(step, (start, transform.init(start)), keys, length=steps)
    seen = population.at(None if keys is None else keys[-1])
    end = (last, mean_loss(tie, last, seen, loss), scores(found, tie, last, loss))
    return jax.tree.map(lambda path, x: jnp.concatenate([path, x[None]]), over_time, end)


def _discrete_solution(tie, optimizer, half, path, losses, reached) -> Solution:
    finite = np.all(np.isfinite(path), axis=1)
    kept = slice(None) if finite.all() else slice(0, max(1, int(np.argmin(finite))))
    icl_time, iwl_time = (float(np.argmax(a)) if a.any() else None for a in (reached > half).T)
    outcome = "finished" if finite.all() else f"failed at step {int(np.argmin(finite))}"
    solution = Solution(
        names=tie.names,
        times=np.arange(len(path), dtype=float)[kept],
        coordinates=path[kept],
        loss=losses[kept],
        icl=reached[kept, 0],
        iwl=reached[kept, 1],
        icl_time=icl_time,
        iwl_time=iwl_time,
        unit="steps",
        outcome=outcome,
        method=f"{optimizer.name} (learning rate {optimizer.learning_rate:g})",
        stats={"steps": len(path) - 1},
    )
    if solution.failed:
        raise RunFailure(f"The optimiser {outcome}: coordinates are not finite.", solution)
    return solution
