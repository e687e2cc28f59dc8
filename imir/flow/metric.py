"""The inverse of a metric, block by block: coordinates in different places are orthogonal."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

# Up to so many coordinates one dense product is faster than gathering blocks.
DENSE = 256


class BlockInverse(eqx.Module):
    """Inverses of `b` blocks of at most `s` coordinates, filled up with zeros; `@` applies them.

    `places` are the coordinates of each block; those that fill up have number C.
    """

    blocks: Float[Array, "b s s"]
    places: Int[Array, "b s"]

    def __matmul__(self, gradient: Float[Array, " C"]) -> Float[Array, " C"]:
        padded = jnp.append(gradient, 0.0)
        moved = jnp.einsum("bst,bt->bs", self.blocks, padded[self.places])
        return padded.at[self.places].set(moved)[:-1]


def orthogonal_groups(gram: Float[np.ndarray, "C C"]) -> list[Int[np.ndarray, " s"]]:
    """Indices of a Gram matrix in groups that are orthogonal to each other."""
    number, group = connected_components(csr_array(gram), directed=False)
    return [np.flatnonzero(group == i) for i in range(number)]


def inverse(metric: Float[np.ndarray, "C C"]) -> Float[Array, "C C"] | BlockInverse:
    """(TᵀGT)⁻¹, computed in float64 whatever the precision of the run."""
    if len(metric) <= DENSE:
        return jnp.asarray(np.linalg.inv(metric))
    groups = orthogonal_groups(metric)
    width = max(map(len, groups))
    places = np.full((len(groups), width), len(metric))
    blocks = np.zeros((len(groups), width, width))
    for i, group in enumerate(groups):
        places[i, : len(group)] = group
        blocks[i, : len(group), : len(group)] = np.linalg.inv(metric[np.ix_(group, group)])
    return BlockInverse(jnp.asarray(blocks), jnp.asarray(places))
