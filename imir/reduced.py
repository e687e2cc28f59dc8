"""The forward pass in coordinates: no embedding dimension, no vocabulary (arXiv 2607.11875, §3).

    score of layer ℓ, head h:   Σ_{u,v} A_u (Σ_S θ_{uSv} K_S) A_vᵀ        (n × n)
    attention, new paths:       A^(ℓ,h) = causal softmax,  A_{u·(ℓ,h)} = A^(ℓ,h) A_u
    logit of token t:           Σ_{v,S} θ_{Sv} Σ_m (A_v)_{last,m} K_S[t, token_m]

K_S is the kernel of selection S on the prompt's tokens and positions, found by table look-ups.
This equals the full model's logits exactly. Tokens outside the prompt's copies share one logit per
orbit, so sums over the vocabulary run over the prompt's copies plus "the rest, times how many".

Shapes: `n` tokens, `S` selections, `c` candidates for the answer, `C` coordinates.
"""

from functools import cache, partial, reduce
from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from imir.prompts import Prompts
from imir.readout import Logits, target_logit
from imir.ties import Term, Tie


class View(eqx.Module):
    """What the reduced model sees of `P` prompts; independent of the coordinates.

    `kernels` K_S of the selections that heads use, for `A` different sights, and which of them each
    prompt `attends` with; `answers` K_S[t, token_m] of the selections that the output uses, for the
    candidates t; `counts` how many tokens each candidate stands for; `target` the candidate to
    predict; `weight` of each prompt.
    """

    kernels: Float[Array, "A S n n"]
    attends: Int[Array, " P"]
    answers: Float[Array, "P c T*n"]
    counts: Float[Array, "P c"]
    target: Int[Array, " P"]
    weight: Float[Array, " P"]


def view(tie: Tie, prompts: Prompts) -> View:
    """Look up every kernel of every prompt."""
    kernels, answers, counts, target = jax.vmap(partial(_look, tie))(prompts)
    return View(kernels, jnp.arange(len(prompts)), answers, counts, target, prompts.weight)


def compressed(seen: View) -> View:
    """The same view with nothing twice: prompts that the heads see alike share their attention,
    candidates with equal answers are counted together. Outside of jit only."""
    K, A, counts, target = map(np.asarray, (seen.kernels, seen.answers, seen.counts, seen.target))
    _, first, attends = np.unique(
        K.reshape(len(K), -1), axis=0, return_index=True, return_inverse=True
    )
    merged = [_merge_candidates(*prompt) for prompt in zip(A, counts, target, strict=True)]
    width = max(len(c) for _, c, _ in merged)
    padded = [
        (np.pad(a, ((0, width - len(c)), (0, 0))), np.pad(c, (0, width - len(c))), t)
        for a, c, t in merged
    ]
    answers, counts, target = (jnp.asarray(np.stack(x)) for x in zip(*padded, strict=True))
    attends = jnp.asarray(attends.ravel()[np.asarray(seen.attends)])
    return View(seen.kernels[first], attends, answers, counts, target, seen.weight)


def stacked(views: list[View]) -> View:
    """One view of all prompts; candidates that a view lacks count zero times."""
    width = max(v.counts.shape[1] for v in views)
    lacking = [width - v.counts.shape[1] for v in views]
    before = np.cumsum([0, *(len(v.kernels) for v in views)])
    wide = [
        jnp.pad(v.answers, ((0, 0), (0, w), (0, 0))) for v, w in zip(views, lacking, strict=True)
    ]
    counts = [jnp.pad(v.counts, ((0, 0), (0, w))) for v, w in zip(views, lacking, strict=True)]
    return View(
        jnp.concatenate([v.kernels for v in views]),
        jnp.concatenate([v.attends + b for v, b in zip(views, before, strict=False)]),
        jnp.concatenate(wide),
        jnp.concatenate(counts),
        jnp.concatenate([v.target for v in views]),
        jnp.concatenate([v.weight for v in views]),
    )


def _merge_candidates(answers: np.ndarray, counts: np.ndarray, target: int):
    rows, inverse = np.unique(answers, axis=0, return_inverse=True)
    total = np.bincount(inverse.ravel(), weights=counts, minlength=len(rows))
    kept = (total > 0) | (np.arange(len(rows)) == inverse.ravel()[target])
    return rows[kept], total[kept], np.cumsum(kept)[inverse.ravel()[target]] - 1


def _look(tie: Tie, prompt: Prompts):
    """Kernels, answers, counts and target of one prompt."""
    basis, config = tie.basis, tie.basis.configuration
    K, first = basis.positions.motif.size, config.first(len(basis.classes))
    heads, output = _used_kernels(tie)
    place = first + prompt.block * K + prompt.offset
    kernels = _sum_kernels(config, tie.kernels[heads], [prompt.tokens, place])
    copy, node = config.locate(jnp.append(prompt.tokens, prompt.target))
    candidate_copy, candidate_node, counts = _candidates(basis, copy, node)
    same = candidate_copy[:, None] == copy[:-1]
    table, values = jnp.asarray(config.table), jnp.asarray(tie.kernels[output], float)
    tokens = table[same.astype(int), candidate_node[:, None], node[:-1]]
    places = jnp.broadcast_to(table[0, candidate_node[:, None], config.nodes - 1], same.shape)
    answers = jnp.moveaxis(values[:, tokens] + values[:, places], 0, 1)
    target = (len(node) - 1) * _roles(basis) + node[-1] - _first_node(config)[node[-1]]
    return kernels, answers.reshape(len(counts), -1), counts, target


def _sum_kernels(
    config, values: np.ndarray, parts: list[Int[Array, " n"]]
) -> Float[Array, "S n n"]:
    """K_S = Σ over the embeddings' parts (token, position) of S on each pair of elements."""
    pairs = product(parts, parts) if _couples(config, values) else zip(parts, parts, strict=True)
    kernels = [jnp.asarray(values, float)[:, config.orbital_of(x[:, None], y)] for x, y in pairs]
    return reduce(jnp.add, kernels)


def _couples(config, values: np.ndarray) -> bool:
    """Does any selection couple tokens with positions?"""
    last = config.orbit_of_node[-1]
    mixed = [(S.source == last) != (S.target == last) for S in config.orbitals]
    return bool(np.any(values[:, mixed]))


def _roles(basis) -> int:
    return max(relation.motif.size for relation in basis.classes)


@cache
def _first_nodes(config) -> tuple[int, ...]:
    return tuple(config.node(int(r), 0) for r in config.node_relation)


def _first_node(config) -> Int[Array, " nodes"]:
    return jnp.asarray(_first_nodes(config))


def _candidates(basis, copy, node):
    """Every token of the copies in the prompt (and of the target's), then one rest per orbit.

    A copy counts where it stands first; orbits of no further copies count zero times.
    """
    config, roles = basis.configuration, _roles(basis)
    classes = len(basis.classes)
    relation = jnp.asarray(config.node_relation)[node]
    earlier = (copy[:, None] == copy) & (jnp.arange(len(copy)) < jnp.arange(len(copy))[:, None])
    new = ~jnp.any(earlier, axis=1)
    sizes = jnp.asarray([r.motif.size for r in config.relations])[relation]
    role = jnp.arange(roles)
    nodes = _first_node(config)[node][:, None] + jnp.minimum(role, sizes[:, None] - 1)
    counts = new[:, None] & (role < sizes[:, None])
    seen = jnp.sum(new[:, None] & (relation[:, None] == jnp.arange(classes)), axis=0)
    orbits = [o for o in dict.fromkeys(config.orbit_of_node) if o != config.orbit_of_node[-1]]
    members = [np.flatnonzero(config.orbit_of_node == o) for o in orbits]
    of = jnp.array([config.node_relation[m[0]] for m in members])
    absent = jnp.asarray([r.copies for r in basis.classes])[of] - seen[of]
    rest = absent * jnp.asarray([len(m) for m in members])
    return (
        jnp.append(jnp.repeat(copy, roles), jnp.full(len(orbits), -1)),
        jnp.append(nodes.ravel(), jnp.asarray([m[0] for m in members])),
        jnp.append(counts.ravel(), rest).astype(float),
    )


@cache
def _used_kernels(tie: Tie) -> tuple[list[int], list[int]]:
    """Kernels that the tie uses in heads and in the output."""
    heads = sorted({t.kernel for t in tie.terms if t.head is not None})
    output = sorted({t.kernel for t in tie.terms if t.head is None})
    return heads, output


def logits(tie: Tie, coordinates: Float[Array, " C"], seen: View) -> Logits:
    """Logits of every viewed prompt at its last place."""
    theta = jnp.append(coordinates, 0.0)
    rows = jax.vmap(partial(_last_rows, tie, theta))(seen.kernels)[seen.attends]
    paths = tie.basis.paths(tie.basis.layers + 1)
    here = [t for t in tie.terms if t.head is None]
    coefficients = theta[jnp.asarray(_table(tie, here, [()], _used_kernels(tie)[1], paths))][0]
    weights = jnp.einsum("sv,pvm->psm", coefficients, rows).reshape(len(rows), -1)
    values = jnp.einsum("pk,pck->pc", weights, seen.answers)
    return Logits(values, seen.counts, seen.target)


def _last_rows(tie: Tie, theta, kernels: Float[Array, "S n n"]) -> Float[Array, "U n"]:
    """Row of the last place of A_v for every path v of depth L."""
    n, basis = kernels.shape[-1], tie.basis
    A = jnp.eye(n, dtype=kernels.dtype)[None]
    for layer in range(1, basis.layers + 1):
        rows = slice(-1, None) if layer == basis.layers else slice(None)
        causal = jnp.tril(jnp.ones((n, n), bool))[rows]
        A_rows = A[:, rows]
        attention = [
            jax.nn.softmax(jnp.where(causal, s, -jnp.inf), axis=-1)
            for s in (
                _score(tie, theta, layer, h + 1, kernels, A, rows) for h in range(basis.heads)
            )
        ]
        deeper = [
            jnp.concatenate([a[None], jnp.einsum("ij,ujk->uik", a, A[1:])]) for a in attention
        ]
        A = jnp.concatenate([A_rows, *deeper])
    return A[:, -1]


def _score(tie, theta, layer: int, head: int, kernels, A, rows: slice) -> Float[Array, "rows n"]:
    """Σ_{u,v} A_u (Σ_S θ_{uSv} K_S) A_vᵀ over the paths in use; A of the empty path is 1."""
    here = [t for t in tie.terms if (t.layer, t.head) == (layer, head)]
    paths, used = tie.basis.paths(layer), sorted({t.kernel for t in here})
    K = kernels[jnp.array([_used_kernels(tie)[0].index(k) for k in used], int)]
    score = jnp.zeros((A.shape[1], A.shape[1]), kernels.dtype)[rows]
    for plain_u in (True, False):
        for plain_v in (True, False):
            us = [p for p in paths if (p == ()) == plain_u and any(t.query_path == p for t in here)]
            vs = [p for p in paths if (p == ()) == plain_v and any(t.key_path == p for t in here)]
            if us and vs:
                c = theta[jnp.asarray(_table(tie, here, us, used, vs))]
                u, v = (jnp.array([paths.index(p) for p in side]) for side in (us, vs))
                score += _contract(c, K, A, rows, None if plain_u else u, None if plain_v else v)
    return score


def _contract(c: Float[Array, "U S V"], K, A, rows: slice, u, v) -> Float[Array, "rows n"]:
    if u is None and v is None:
        return jnp.einsum("s,sij->ij", c[0, :, 0], K[:, rows])
    if u is None:
        return jnp.einsum("sv,sik,vjk->ij", c[0], K[:, rows], A[v])
    if v is None:
        return jnp.einsum("us,uim,smj->ij", c[:, :, 0], A[u][:, rows], K)
    return jnp.einsum("usv,uim,smk,vjk->ij", c, A[u][:, rows], K, A[v])


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
