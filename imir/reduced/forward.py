"""The forward pass in coordinates: no embedding dimension, no vocabulary (arXiv 2607.11875, §3).

    score of layer ℓ, head h:   Σ_{u,v} A_u (Σ_S θ_{uSv} K_S) A_vᵀ        (n × n)
    attention, new paths:       A^(ℓ,h) = causal softmax,  A_{u·(ℓ,h)} = A^(ℓ,h) A_u
    logit of token t:           Σ_{v,S} θ_{Sv} Σ_m (A_v)_{last,m} K_S[t, token_m]

This equals the full model's logits exactly. Of the last layer only the last row is needed, and no
A_u is multiplied out for it: rows go down through the heads, and come up again.

Shapes: `n` tokens, `i` rows, `U` and `V` paths, `C` coordinates.
"""

from collections.abc import Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from imir.prompts import Prompts
from imir.readout import Logits, target_logit
from imir.reduced.attention import Attention, dense, first_attention, left, right
from imir.reduced.deep import last_rows
from imir.reduced.kernels import Kernels, all_are_near, background, through, used_kernels
from imir.reduced.view import View, view
from imir.ties import Term, Tie

# Layers from which whole arrays are faster than rows and near places.
DEEP = 3

Heads = Sequence[Attention | Float[Array, "n n"]]


def logits(tie: Tie, coordinates: Float[Array, " C"], seen: View) -> Logits:
    """Logits of every viewed prompt at its last place."""
    theta = jnp.append(coordinates, 0.0)
    rows = _rows(tie, theta, seen.kernels)[seen.attends]
    paths = tie.basis.paths(tie.basis.layers + 1)
    here = [t for t in tie.terms if t.head is None]
    c = theta[jnp.asarray(_table(tie, here, [()], used_kernels(tie)[1], paths))].T
    B = jnp.asarray(background(tie)[1], c.dtype)
    values = jax.vmap(partial(through, c, B))(rows[:, :, None], seen.answers)[:, 0, 0]
    return Logits(values, seen.counts, seen.target)


def _rows(tie: Tie, theta, kernels: Kernels) -> Float[Array, "A U n"]:
    """Row of the last place of A_v for every sight and path v of depth L."""
    L = tie.basis.layers
    if L < DEEP:
        return jax.vmap(partial(_last_rows, tie, theta))(kernels)
    layers = [_coefficients(tie, theta, layer) for layer in range(1, L + 1)]
    return last_rows(
        [jnp.stack([c for c, _ in heads]) for heads in layers], layers[0][0][1], kernels
    )


def _last_rows(tie: Tie, theta, kernels: Kernels) -> Float[Array, "U n"]:
    """The same for one sight, of fewer layers than `DEEP`."""
    *below, last = [_coefficients(tie, theta, layer + 1) for layer in range(tie.basis.layers)]
    heads = [_first(c, B, kernels) for layer in below for c, B in layer]
    x = _down(jnp.eye(kernels.orbits.shape[-2], dtype=theta.dtype)[-1:], heads)
    rows = [_attention(c, B, kernels, x, heads) for c, B in last]
    return jnp.concatenate([x, *(_down(row, heads) for row in rows)])[:, 0]


def _first(c, B, kernels) -> Attention | Float[Array, "n n"]:
    """Attention of the first layer."""
    A = first_attention(c[0, :, 0], B, kernels)
    return dense(A) if all_are_near(kernels) else A


def _attention(c, B, kernels, x: Float[Array, "U i n"], heads: Heads) -> Float[Array, "i n"]:
    """Rows of causal softmax(Σ_{u,v} A_u (Σ_S c_{uSv} K_S) A_vᵀ), from x_u = x A_u."""
    score = _up(through(c, B, x, kernels), heads)
    causal = jnp.tril(jnp.ones((x.shape[-1],) * 2, bool))[-x.shape[1] :]
    return jax.nn.softmax(jnp.where(causal, score, -jnp.inf), axis=-1)


def _coefficients(tie: Tie, theta, layer: int) -> list[tuple[Array, Array]]:
    """θ_{uSv} of every head and B_S, the kernels of different copies."""
    paths, kernels = tie.basis.paths(layer), used_kernels(tie)[0]
    terms = [
        [t for t in tie.terms if (t.layer, t.head) == (layer, h + 1)]
        for h in range(tie.basis.heads)
    ]
    B = jnp.asarray(background(tie)[0], theta.dtype)
    return [(theta[jnp.asarray(_table(tie, here, paths, kernels, paths))], B) for here in terms]


def _down(x: Float[Array, "i n"], heads: Heads) -> Float[Array, "U i n"]:
    """x A_u for every path u of at most one of these heads, in the order of `Basis.paths`."""
    return jnp.stack([x, *(left(x, A) for A in heads)])


def _up(x: Float[Array, "V i n"], heads: Heads) -> Float[Array, "i n"]:
    """Σ_v x_v A_vᵀ over the same paths."""
    return x[0] + sum(right(row, A) for row, A in zip(x[1:], heads, strict=True))


def _table(tie: Tie, terms: list[Term], us, kernels, vs) -> Int[np.ndarray, "U K V"]:
    """Coordinate of each term; the index of an appended zero where there is no term."""
    places = {(t.query_path, t.kernel, t.key_path): t.coordinate for t in terms}
    rows = [[[places.get((u, k, v), len(tie.names)) for v in vs] for k in kernels] for u in us]
    return np.array(rows, np.int32).reshape(len(us), len(kernels), len(vs))


def vocabulary_logits(
    tie: Tie, coordinates: Float[Array, " C"], prompts: Prompts
) -> Float[Array, "P V"]:
    """Logits of every token of the vocabulary; for checks on small vocabularies."""

    def ask(token):
        asked = eqx.tree_at(lambda p: p.target, prompts, jnp.full_like(prompts.target, token))
        return target_logit(logits(tie, coordinates, view(tie, asked)))

    return jax.lax.map(ask, jnp.arange(sum(relation.size for relation in tie.basis.classes))).T
