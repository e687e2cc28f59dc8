"""Plain Monte Carlo: the share of random points that lie in the set."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from fullmodel.boolean.volume.space import Space


@eqx.filter_jit
def hits(space: Space, draws: int, batch: int, key: Key[Array, ""]) -> Int[Array, ""]:
    """How many of so many independent points lie in the set."""

    size = min(batch, draws)
    rounds = -(-draws // size)
    keys = jax.random.split(key, rounds * size).reshape(rounds, size)

    def inside(keys: Key[Array, " B"]) -> Array:
        return jax.vmap(lambda k: space.score(space.draw(k)) > 0)(keys)

    found = jax.lax.map(inside, keys).reshape(-1)
    return jnp.sum(found[:draws])
