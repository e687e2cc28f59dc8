"""Where the flow ends from many initial points at once."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from imir.flow import Flow, check, integrate, inverse
from imir.population import Population

# Initial points that are integrated side by side.
LANES = 32


def ends(
    population: Population, starts: Float[np.ndarray, "N C"], flow: Flow
) -> Float[np.ndarray, "N C"]:
    """Coordinates at the end of the flow; NaN where the solver fails."""
    check(population.tie, flow)
    metric = inverse(population.tie.metric)
    lanes = min(LANES, len(starts))
    filled = np.pad(starts, ((0, -len(starts) % lanes), (0, 0)), mode="edge")
    parts = [
        _ends(population, flow, metric, jnp.asarray(part))
        for part in filled.reshape(-1, lanes, starts.shape[1])
    ]
    return np.concatenate(parts)[: len(starts)]


@eqx.filter_jit
def _ends(population: Population, flow: Flow, metric, starts) -> Float[Array, "N C"]:
    nothing = jnp.zeros((), starts.dtype)

    def end(start):
        trace = integrate(population.tie, flow, population.at(), None, start, nothing, metric)
        return jnp.where(trace.failure == 0, trace.coordinates[-1], jnp.nan)

    return jax.vmap(end)(starts)
