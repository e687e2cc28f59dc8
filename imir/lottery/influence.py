"""Who stimulates whom: the Jacobian of the flow along a trajectory (arXiv 2607.11875, section 5).

    ẏ = −G⁻¹ ∇L(y),     S_ij = sign(y_i) ∂ẏ_i/∂y_j sign(y_j)

S_ij > 0: coordinate j stimulates i, the larger |y_j| the faster |y_i| grows; S_ij < 0: it inhibits.
"""

from dataclasses import dataclass
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from imir.flow import Flow, gradient_flow, inverse, velocity
from imir.lottery.ends import ends
from imir.lottery.race import Circuits, winners
from imir.population import Loss, Population


@dataclass(frozen=True)
class Influence:
    """Signed influences of every coordinate (columns) on every other (rows) at some times."""

    names: tuple[str, ...]
    times: Float[np.ndarray, " T"]
    coordinates: Float[np.ndarray, "T C"]
    strength: Float[np.ndarray, "T C C"]

    @property
    def mean(self) -> Float[np.ndarray, "C C"]:
        """Averaged over the times, each scaled to its largest entry, without self-influence."""
        off = self.strength * (1 - np.eye(len(self.names)))
        scale = np.max(np.abs(off), axis=(1, 2), keepdims=True)
        return np.mean(off / np.where(scale > 0, scale, 1.0), axis=0)


@eqx.filter_jit
def jacobians(
    population: Population, metric, points: Float[Array, "T C"], loss: Loss
) -> tuple[Float[Array, "T C"], Float[Array, "T C C"]]:
    """Velocity of the flow and its Jacobian at each point."""

    flow = partial(velocity, population.tie, loss, population.at(), metric)

    def at(y):
        return flow(y), jax.jacfwd(flow)(y)

    return jax.lax.map(at, points)


def influence(
    population: Population, start: Float[np.ndarray, " C"], flow: Flow = Flow(saves=24)
) -> Influence:
    """Influences at the saved times of a run."""
    run = gradient_flow(population, jnp.asarray(start), flow)
    metric = inverse(population.tie.metric)
    points = jnp.asarray(run.coordinates)
    _, J = jacobians(population, metric, points, flow.loss)
    sign = np.where(run.coordinates < 0, -1.0, 1.0)
    strength = sign[:, :, None] * np.asarray(J) * sign[:, None]
    return Influence(run.names, run.times, run.coordinates, strength)


def moved(
    population: Population,
    circuits: Circuits,
    start: Float[np.ndarray, " C"],
    name: str,
    values: Float[np.ndarray, " V"],
    flow: Flow,
) -> Int[np.ndarray, " V"]:
    """The winner when one coordinate of the initial point is moved to each of these values."""
    if name not in population.tie.names:
        raise ValueError(
            f"Argument `name` must be a coordinate among {', '.join(population.tie.names[:8])}, "
            f"but is {name!r}."
        )
    starts = np.repeat(np.asarray(start, float)[None], len(values), axis=0)
    starts[:, population.tie.names.index(name)] = values
    return winners(population, circuits, ends(population, starts, flow), flow.loss)
