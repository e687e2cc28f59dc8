"""Embeddings and output-value maps of the full model (arXiv 2607.11875, section 3).

The exact frame makes Theorem 1 hold to rounding: embeddings are one-hot up to centring, and every
head writes into a fresh orthogonal copy of the embedding space.

Shapes: `V` tokens, `places` = slots times ring places, `N` = V + places, `L` layers, `H` heads,
`d` = N (H + 1)^L.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from imir.basis import Basis


class Frame(eqx.Module):
    """What a full model does not train: embeddings and output-value maps.

    Row `block * ring + offset` of `positions` embeds a place on a block's ring. A head that
    attends to the residual vector x writes `output_value` @ x.
    """

    tokens: Float[Array, "V d"]
    positions: Float[Array, "places d"]
    output_value: Float[Array, "L H d d"]
    ring: int = eqx.field(static=True)


def exact_frame(basis: Basis) -> Frame:
    """The frame in which Theorem 1 is exact, one copy of the embedding space for each path.

    Copies stand in the order of `basis.paths(L + 1)`; embeddings live in the empty path's copy.
    `onehot`: e_x. `centered`: e_x − mean of e over x's orbit (tokens) or ring (positions).
    V^(ℓ,h) sends copy u to copy u·(ℓ,h) for every path u below ℓ, and the other copies to zero.
    """
    N, copies = basis.configuration.size, len(basis.paths(basis.layers + 1))
    embeddings = np.pad(_embeddings(basis), ((0, 0), (0, N * (copies - 1))))
    tokens, positions = np.split(embeddings, [basis.configuration.first(len(basis.classes))])
    arrays = (jnp.asarray(x) for x in (tokens, positions, _output_values(basis)))
    return Frame(*arrays, ring=basis.positions.motif.size)


def _embeddings(basis: Basis) -> Float[np.ndarray, "N N"]:
    """Identity, less the mean of each token's orbit and of each slot's ring where centred."""
    identity = np.eye(basis.configuration.size)
    if basis.frame == "onehot":
        return identity
    together = _together(basis)
    return identity - together / together.sum(axis=0)


def _together(basis: Basis) -> Bool[np.ndarray, "N N"]:
    """Two tokens of one orbit, or two places of one ring."""
    copy, node = basis.configuration.elements
    orbit = basis.configuration.orbit_of_node[node]
    ring = np.where(orbit == orbit[-1], copy, -1)
    return (orbit[:, None] == orbit) & (ring[:, None] == ring)


def _output_values(basis: Basis) -> Float[np.ndarray, "L H d d"]:
    """V^(ℓ,h) ⊗ 1: steps between paths, the same for every dimension of the embedding space."""
    paths = basis.paths(basis.layers + 1)
    steps = np.zeros((basis.layers, basis.heads, len(paths), len(paths)))
    for i, path in enumerate(paths):
        if path:
            layer, head = path[-1]
            steps[layer - 1, head - 1, i, paths.index(path[:-1])] = 1.0
    return np.kron(steps, np.eye(basis.configuration.size))
