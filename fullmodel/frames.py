"""Embeddings and output-value maps of the full model (arXiv 2607.11875, section 3).

The exact frame makes Theorem 1 hold to rounding: embeddings are one-hot up to centring, and every
head writes into a fresh orthogonal copy of the embedding space. Random frames of any width do so up
to inner products of about 1/√d.

Shapes: `V` tokens, `places` = slots times ring places, `N` = V + places, `L` layers, `H` heads,
`d` = N (H + 1)^L.
"""

from typing import Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from fullmodel.architecture import Architecture
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
    arrays = (jnp.asarray(x) for x in (tokens, positions, _copies(basis, N)))
    return Frame(*arrays, ring=basis.positions.motif.size)


class Embedded(Protocol):
    """What has embeddings and output-value maps: a frame, or a model's arrays."""

    @property
    def tokens(self) -> Array | np.ndarray: ...
    @property
    def positions(self) -> Array | np.ndarray: ...
    @property
    def output_value(self) -> Array | np.ndarray: ...


def writings(basis: Basis, frame: Embedded) -> Float[np.ndarray, "U N d"]:
    """F_u = E V_uᵀ for every path u, in the order of `Basis.paths`."""
    rows = [np.concatenate([np.asarray(frame.tokens), np.asarray(frame.positions)])]
    for V in np.asarray(frame.output_value):
        rows += [F @ V[h].T for h in range(basis.heads) for F in list(rows)]
    return np.stack(rows)


def frame_of(basis: Basis, architecture: Architecture, key: Key[Array, ""]) -> Frame:
    """The frame of an architecture; random parts are drawn from `key`.

    Embeddings live in the first of `architecture.copies` equal parts of the stream. Sinusoidal rows
    are cosines and sines of a phase for each token, or each block, and frequency; places turn on
    their ring by its harmonics, so that inner products within a block are those of the exact frame.
    Raises `ValueError` where the width is too small or indivisible.
    """
    width, part = _widths(basis, architecture)
    keys, wide = jax.random.split(key, 3), lambda x: jnp.pad(x, ((0, 0), (0, width - x.shape[1])))
    return Frame(
        wide(_token_rows(basis, architecture, part, keys[0])),
        wide(_position_rows(basis, architecture, part, keys[1])),
        _maps(basis, architecture, part, keys[2]),
        ring=basis.positions.motif.size,
    )


def _widths(basis: Basis, architecture: Architecture) -> tuple[int, int]:
    """Dimensions of the stream, and of the part in which embeddings live."""
    N, copies, width = basis.configuration.size, architecture.copies, architecture.width
    narrow = architecture.stream == "additive" and architecture.output_value == "exact"
    least = copies * (N if narrow or architecture.embedding == "exact" else 2)
    if width is None:
        return least, least // copies
    if width < least:
        raise ValueError(
            f"Argument `width` must be at least {least} for the {N} tokens and places of this task "
            f"and {copies} of their copies, but is {width}."
        )
    if width % copies:
        raise ValueError(f"Argument `width` must be a multiple of {copies} copies, but is {width}.")
    sinusoidal = "sinusoidal" in (architecture.embedding, architecture.positions)
    if sinusoidal and width // copies % 2:
        raise ValueError(
            f"Argument `width` must be a multiple of {2 * copies} for sinusoidal embeddings, "
            f"but is {width}."
        )
    return width, width // copies


def _token_rows(basis: Basis, architecture: Architecture, part: int, key) -> Float[Array, "V _"]:
    V = basis.configuration.first(len(basis.classes))
    if architecture.embedding == "exact":
        return jnp.asarray(_embeddings(basis)[:V])
    if architecture.embedding == "sinusoidal":
        return _waves(2 * jnp.pi * jax.random.uniform(key, (V, part // 2)))
    return jax.random.normal(key, (V, part)) / jnp.sqrt(part)


def _position_rows(basis: Basis, architecture: Architecture, part: int, key):
    """Of places; absolute rows belong to the place in the prompt, rotary ones are zero."""
    V, places = basis.configuration.first(len(basis.classes)), basis.positions.size
    if architecture.positions == "exact":
        return jnp.asarray(_embeddings(basis)[V:])
    if architecture.positions == "absolute":
        return jax.random.normal(key, (places, part)) / jnp.sqrt(part)
    if architecture.positions == "rotary":
        return jnp.zeros((places, part))
    K = basis.positions.motif.size
    phases = 2 * jnp.pi * jax.random.uniform(key, (basis.positions.copies, 1, part // 2))
    turns = 2 * jnp.pi * jnp.outer(jnp.arange(K), 1 + jnp.arange(part // 2) % max(1, K - 1)) / K
    return jnp.sqrt(1 - 1 / K) * _waves((phases + turns).reshape(places, part // 2))


def _waves(angles: Float[Array, "R k"]) -> Float[Array, "R 2*k"]:
    """Rows of unit norm."""
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1) / jnp.sqrt(angles.shape[1])


def _maps(basis: Basis, architecture: Architecture, part: int, key) -> Float[Array, "L H d d"]:
    """Fresh copies, rotated ones, or random rotations of the whole stream."""
    L, H = architecture.layers, architecture.heads
    if architecture.output_value == "exact":
        return jnp.asarray(_copies(basis, part))
    rotations = jax.random.orthogonal(key, part, (L, H))
    if architecture.stream == "additive":
        return rotations
    return jnp.einsum("lhuv,lhij->lhuivj", _steps(basis), rotations).reshape(
        L, H, part * architecture.copies, -1
    )


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


def _copies(basis: Basis, part: int) -> Float[np.ndarray, "L H d d"]:
    """V^(ℓ,h) ⊗ 1: the same for every dimension of an embedding space of so many."""
    return np.kron(_steps(basis), np.eye(part))


def _steps(basis: Basis) -> Float[np.ndarray, "L H U U"]:
    """Steps between paths: each head turns u into u·(ℓ,h)."""
    paths = basis.paths(basis.layers + 1)
    steps = np.zeros((basis.layers, basis.heads, len(paths), len(paths)))
    for i, path in enumerate(paths):
        if path:
            layer, head = path[-1]
            steps[layer - 1, head - 1, i, paths.index(path[:-1])] = 1.0
    return steps
