"""Plain Monte Carlo: the share of random points that lie in the set."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from fullmodel.boolean.volume.space import Space


@eqx.filter_jit
def hits(space: Space, draws: int, batch: int, key: Key[Array, ""]) -> Int[Array, ""]:
    """How many of so many independent points lie in the set."""

    def inside(key: Key[Array, ""]) -> Array:
        return space.score(space.draw(key)) > 0

    found = jax.lax.map(inside, jax.random.split(key, draws), batch_size=min(batch, draws))
    return jnp.sum(found)
