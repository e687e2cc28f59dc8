"""Loss and accuracy of a model at many points of its manifold."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from imir.population import Loss, Population, logits
from imir.readout import LOSSES, Logits, target_logit

# Logits closer than this are a tie.
TIE = 1e-6


def accuracy(out: Logits) -> Float[Array, " P"]:
    """Is the right answer the most probable token? Of several that are, each counts its share."""
    own, shared = jnp.where(out.counts > 0, out.values, -jnp.inf), out.shared
    best = jnp.maximum(jnp.max(own, axis=-1), target_logit(out))
    if shared is not None:
        present = jnp.where(shared.counts > 0, shared.values, -jnp.inf)
        best = jnp.maximum(best, jnp.max(present, axis=-1)[shared.uses])
    winners = jnp.sum(out.counts * (own >= best[:, None] - TIE), axis=-1)
    if shared is not None:
        high = present[shared.uses] >= best[:, None] - TIE
        winners += jnp.sum(shared.counts[shared.uses] * high, axis=-1)
    return (target_logit(out) >= best - TIE) / jnp.maximum(winners, 1.0)


def measured(
    population: Population, points: Float[np.ndarray, "M C"], loss: Loss = "cross_entropy"
) -> Float[np.ndarray, "M 2"]:
    """Expected loss and accuracy of the model with each row of coordinates."""
    room = max(len(population.tie.names) + 1, len(points))
    filled = np.pad(points, ((0, room - len(points)), (0, 0)))
    return np.asarray(_measured(population, jnp.asarray(filled), jnp.asarray(len(points)), loss))[
        : len(points)
    ]


@eqx.filter_jit
def _measured(population: Population, points, count, loss: Loss) -> Float[Array, "M 2"]:
    """The first `count` of the points, so that one program serves any number of them."""
    tie, seen = population.tie, population.at()

    def at(i, found):
        out = logits(tie, points[i], seen)
        values = jnp.stack([seen.weight @ LOSSES[loss](out), seen.weight @ accuracy(out)])
        return found.at[i].set(values)

    return jax.lax.fori_loop(0, count, at, jnp.zeros((len(points), 2), points.dtype))
