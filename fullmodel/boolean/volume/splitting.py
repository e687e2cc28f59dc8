"""Multilevel splitting: a small probability as a product of large ones.

A population starts from the whole space. At every stage the worse half dies, survivors take its
place, and all of them move at random without falling below the level that the dead had; the
probability of the set is the product of the shares that survived. Au & Beck 2001, "Estimation of
small failure probabilities in high dimensions by subset simulation"; levels chosen from the
population as in Cérou & Guyader 2007, "Adaptive multilevel splitting for rare event analysis".
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fullmodel.boolean.volume.space import Space

# Share of proposals that a step should have accepted, near the best for Gaussian moves.
WANTED = 0.3


@dataclass(frozen=True)
class Splitting:
    """How much is spent on one estimate."""

    population: int = 256
    """Points in the population."""
    moves: int = 20
    """Random moves of every point at each stage."""
    survivors: float = 0.5
    """Share of the population that survives a stage."""
    stages: int = 100
    """Stages after which the estimate is given up."""
    batch: int = 32
    """Points whose scores are computed at once."""

    def __post_init__(self) -> None:
        for name in ("population", "moves", "stages", "batch"):
            if getattr(self, name) < 1 + (name == "population"):
                raise ValueError(
                    f"Argument `{name}` must be at least {1 + (name == 'population')}, "
                    f"but is {getattr(self, name)}."
                )
        if not 0 < self.survivors < 1:
            raise ValueError(
                f"Argument `survivors` must be between 0 and 1, but is {self.survivors}."
            )


class Descent(eqx.Module):
    """One run of the population down to the set, or as far as it came.

    `log_probability` (natural logarithm) is that of the set where `arrived`, otherwise that of the
    last level reached, which contains the set. `variance` is the relative variance of the estimate
    were the population independent at every stage, Σ (1 − p) / (n p).
    """

    log_probability: Float[Array, ""]
    variance: Float[Array, ""]
    arrived: Bool[Array, ""]
    stages: Int[Array, ""]
    accepted: Float[Array, ""]
    points: Float[Array, "n P"]
    scores: Float[Array, " n"]


class _State(eqx.Module):
    points: Float[Array, "n P"]
    scores: Float[Array, " n"]
    step: Float[Array, ""]
    log_probability: Float[Array, ""]
    variance: Float[Array, ""]
    stage: Int[Array, ""]
    accepted: Float[Array, ""]
    arrived: Bool[Array, ""]
    stuck: Bool[Array, ""]


@eqx.filter_jit
def descend(space: Space, effort: Splitting, key: Key[Array, ""]) -> Descent:
    """One estimate of the probability of `score > 0`."""

    def unfinished(state: _State):
        return ~(state.arrived | state.stuck) & (state.stage < effort.stages)

    def stage(state: _State):
        return _stage(space, effort, jax.random.fold_in(key, state.stage + 1), state)

    end = jax.lax.while_loop(unfinished, stage, _start(space, effort, key))
    return Descent(
        end.log_probability,
        end.variance,
        end.arrived,
        end.stage,
        end.accepted,
        end.points,
        end.scores,
    )


def _start(space: Space, effort: Splitting, key: Key[Array, ""]) -> _State:
    keys = jax.random.split(jax.random.fold_in(key, 0), effort.population)
    points = jax.vmap(space.draw)(keys)
    scores = _scores(space, effort, points)
    nothing, no = jnp.zeros_like(scores[0]), jnp.asarray(False)
    return _State(points, scores, nothing + 0.5, nothing, nothing, jnp.asarray(0), nothing, no, no)


def _scores(space: Space, effort: Splitting, points: Float[Array, "n P"]) -> Float[Array, " n"]:
    return jax.lax.map(space.score, points, batch_size=min(effort.batch, effort.population))


def _stage(space: Space, effort: Splitting, key: Key[Array, ""], state: _State) -> _State:
    """The best survive above a level that they choose; the last level is that of the set, 0."""
    kept = max(1, int(effort.survivors * effort.population))
    level = jnp.minimum(jnp.sort(state.scores)[-kept - 1], 0.0)
    share = jnp.mean(state.scores > level)
    arrived, stuck = (level >= 0) & (share > 0), share == 0
    settled = arrived | stuck
    order = jnp.argsort(-state.scores)
    chosen = order[jnp.arange(effort.population) % jnp.maximum(jnp.sum(state.scores > level), 1)]
    points = state.points[chosen]
    moved = jax.lax.cond(
        settled,
        lambda: (state.points, state.scores, state.step, state.accepted),
        lambda: _moved(space, effort, key, points, state.scores[chosen], state.step, level),
    )
    p = jnp.where(stuck, 1.0, share)
    return _State(
        points=moved[0],
        scores=moved[1],
        step=moved[2],
        log_probability=state.log_probability + jnp.log(p),
        variance=state.variance + (1 - p) / (p * effort.population),
        stage=state.stage + 1,
        accepted=moved[3],
        arrived=arrived,
        stuck=stuck,
    )


def _moved(space: Space, effort: Splitting, key: Key[Array, ""], points, scores, step, level):
    """Metropolis moves of the distribution restricted to what is above the level.

    The step follows the share that is accepted, so that it suits the level.
    """

    def move(carry, key):
        points, scores, step = carry
        keys = jax.random.split(key, effort.population)
        proposed = jax.vmap(space.move, (0, 0, None))(keys, points, step)
        found = _scores(space, effort, proposed)
        accept = found > level
        points = jnp.where(accept[:, None], proposed, points)
        share = jnp.mean(accept, dtype=scores.dtype)
        step = jnp.minimum(step * jnp.exp(share - WANTED), 1.0)
        return (points, jnp.where(accept, found, scores), step), share

    keys = jax.random.split(key, effort.moves)
    (points, scores, step), shares = jax.lax.scan(move, (points, scores, step), keys)
    return points, scores, step, jnp.mean(shares)
