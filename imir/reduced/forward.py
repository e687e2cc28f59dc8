"""The forward pass in coordinates: no embedding dimension, no vocabulary (arXiv 2607.11875, §3).

    score of layer ℓ, head h:   Σ_{u,v} A_u (Σ_S θ_{uSv} K_S) A_vᵀ        (n × n)
    attention, new paths:       A^(ℓ,h) = causal softmax,  A_{u·(ℓ,h)} = A^(ℓ,h) A_u
    logit of token t:           Σ_{v,S} θ_{Sv} Σ_m (A_v)_{last,m} K_S[t, token_m]

This equals the full model's logits exactly. Of the last layer only the last row is needed, and no
A_u is multiplied out for it: rows go down through the heads, and come up again.

Shapes: `n` tokens, `i` rows, `U` and `V` paths, `C` coordinates.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from imir.prompts import Prompts
from imir.readout import Logits, target_logit
from imir.reduced.attention import Attention, cheapest, first_attention, left, right
from imir.reduced.kernels import Kernels, background, through, used_kernels
from imir.reduced.view import View, view
from imir.ties import Term, Tie

Heads = list[Attention | Float[Array, "n n"]]


def logits(tie: Tie, coordinates: Float[Array, " C"], seen: View) -> Logits:
    """Logits of every viewed prompt at its last place."""
    theta = jnp.append(coordinates, 0.0)
    rows = jax.vmap(partial(_last_rows, tie, theta))(seen.kernels)[seen.attends]
    paths = tie.basis.paths(tie.basis.layers + 1)
    here = [t for t in tie.terms if t.head is None]
    c = theta[jnp.asarray(_table(tie, here, [()], used_kernels(tie)[1], paths))]
    far = jnp.einsum("usv,sop->uvop", c.T, jnp.asarray(background(tie)[1], c.dtype))
    values = jax.vmap(partial(through, c.T, far))(rows[:, :, None], seen.answers)[:, 0, 0]
    return Logits(values, seen.counts, seen.target)


def _last_rows(tie: Tie, theta, kernels: Kernels) -> Float[Array, "U n"]:
    """Row of the last place of A_v for every path v of depth L."""
    each = jnp.eye(kernels.orbits.shape[-2], dtype=theta.dtype)
    below: list[Heads] = []
    for layer in range(1, tie.basis.layers):
        below.append(
            [_attention(tie, theta, (layer, h), kernels, each, below) for h in _heads(tie)]
        )
    last, L = each[-1:], tie.basis.layers
    attention = [_softmax(tie, theta, (L, h), kernels, last, below) for h in _heads(tie)]
    return jnp.concatenate([_down(row, below) for row in (last, *attention)])[:, 0]


def _heads(tie: Tie) -> range:
    return range(1, tie.basis.heads + 1)


def _attention(tie, theta, head: tuple[int, int], kernels, each, below):
    """A^(ℓ,h), all rows."""
    if head[0] > 1:
        return _softmax(tie, theta, head, kernels, each, below)
    c, B = _coefficients(tie, theta, head)
    # Layers between the first and the last one multiply it with n rows, the last one with one.
    return cheapest(first_attention(c[0, :, 0], B, kernels), rows=tie.basis.layers - 1)


def _softmax(tie, theta, head: tuple[int, int], kernels, rows, below) -> Float[Array, "i n"]:
    """These rows of causal softmax(Σ_{u,v} A_u (Σ_S θ_{uSv} K_S) A_vᵀ)."""
    c, B = _coefficients(tie, theta, head)
    far = jnp.einsum("usv,sop->uvop", c, B)
    score = _up(through(c, far, _down(rows, below), kernels), below)
    causal = jnp.tril(jnp.ones((kernels.orbits.shape[-2],) * 2, bool))[-len(rows) :]
    return jax.nn.softmax(jnp.where(causal, score, -jnp.inf), axis=-1)


def _coefficients(tie, theta, head: tuple[int, int]):
    """θ_{uSv} of a head and the kernels of different copies."""
    here, paths = [t for t in tie.terms if (t.layer, t.head) == head], tie.basis.paths(head[0])
    c = theta[jnp.asarray(_table(tie, here, paths, used_kernels(tie)[0], paths))]
    return c, jnp.asarray(background(tie)[0], c.dtype)


def _down(x: Float[Array, "i n"], below: list[Heads]) -> Float[Array, "U i n"]:
    """x A_u for every path u through these layers, in the order of `Basis.paths`."""
    rows = x[None]
    for heads in reversed(below):
        through_heads = [left(rows, A) for A in heads]
        rows = jnp.stack([rows, *through_heads], axis=1).reshape(-1, *x.shape)
    return rows


def _up(x: Float[Array, "V i n"], below: list[Heads]) -> Float[Array, "i n"]:
    """Σ_v x_v A_vᵀ over the paths v through these layers."""
    for heads in below:
        rows = x.reshape(-1, len(heads) + 1, *x.shape[1:])
        x = rows[:, 0] + sum(right(rows[:, h + 1], A) for h, A in enumerate(heads))
    return x[0]


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
