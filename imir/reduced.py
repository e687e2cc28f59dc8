"""The forward pass in coordinates: no embedding dimension, no vocabulary (arXiv 2607.11875, §3).

    score of layer ℓ, head h:   Σ_{u,v} A_u (Σ_S θ_{uSv} K_S) A_vᵀ        (n × n)
    attention, new paths:       A^(ℓ,h) = causal softmax,  A_{u·(ℓ,h)} = A^(ℓ,h) A_u
    logit of token t:           Σ_{v,S} θ_{Sv} Σ_m (A_v)_{last,m} K_S[t, token_m]

K_S is the kernel of selection S on the prompt's tokens and positions, found by table look-ups.
It is a constant for each pair of orbits but for the few places of the same copy or block, so that
x K_S costs O(n) for each row x, and no n × n kernel is kept.
This equals the full model's logits exactly. Tokens outside the prompt's copies share one logit per
orbit, so sums over the vocabulary run over the prompt's copies plus "the rest, times how many".

Shapes: `n` tokens, `S` selections, `c` candidates for the answer, `C` coordinates, `o`
orbits of tokens, `t` elements that kernels are asked for, `D` places near each.
"""

from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from imir.basis import Path
from imir.prompts import Prompts
from imir.readout import Logits, target_logit
from imir.ties import Term, Tie


class Kernels(eqx.Module):
    """K_S[k, t] = B_S[orbit of k, orbit of t], but for the `near` places of t, those that share a
    copy or a block with it: there K_S is `apart` from B_S, the kernel of different copies.

    `orbits` of the prompt's tokens k and of the elements t that are `asked`, as one-hot rows. Any
    other place may be listed as near, with zeros; where all are (D = n), they stand in order.
    """

    orbits: Float[Array, "*P n o"]
    asked: Float[Array, "*P t o"]
    near: Int[Array, "*P t D"]
    apart: Float[Array, "*P S t D"]

    def __len__(self) -> int:
        return len(self.near)


class View(eqx.Module):
    """What the reduced model sees of `P` prompts; independent of the coordinates.

    `kernels` of the selections that heads use, for `A` different sights, and which of them each
    prompt `attends` with; `answers`, the kernels of the selections that the output uses, asked for
    the candidates t; `counts` how many tokens each candidate stands for; `target` the candidate to
    predict; `weight` of each prompt.
    """

    kernels: Kernels
    attends: Int[Array, " P"]
    answers: Kernels
    counts: Float[Array, "P c"]
    target: Int[Array, " P"]
    weight: Float[Array, " P"]


def view(tie: Tie, prompts: Prompts) -> View:
    """Look up every kernel of every prompt; every place is near."""
    kernels, answers, counts, target = jax.vmap(partial(_look, tie))(prompts)
    return View(kernels, jnp.arange(len(prompts)), answers, counts, target, prompts.weight)


def compressed(seen: View) -> View:
    """The same view with nothing twice: prompts that the heads see alike share their attention,
    candidates with equal answers are counted together. Only what is apart is near. Outside of jit
    only."""
    rows = np.concatenate([_flat(seen.kernels.orbits), _flat(_everywhere(seen.kernels))], axis=1)
    _, first, number = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    kernels = jax.tree.map(lambda x: x[first], seen.kernels)
    attends = jnp.asarray(number.ravel()[np.asarray(seen.attends)])
    answers, counts, target = _merged(seen)
    return View(_nearest(kernels), attends, _nearest(answers), counts, target, seen.weight)


def _flat(x: Array) -> Float[np.ndarray, "P s"]:
    return np.asarray(x).reshape(len(x), -1)


def _merged(seen: View) -> tuple[Kernels, Float[Array, "P c"], Int[Array, " P"]]:
    """Answers, counts and target with equal candidates counted together."""
    apart = jnp.moveaxis(_everywhere(seen.answers), 1, 2)
    rows = np.concatenate([seen.answers.asked, apart.reshape(*apart.shape[:2], -1)], axis=-1)
    parts = zip(rows, *map(np.asarray, (seen.counts, seen.target)), strict=True)
    kept, counts, target = zip(*(_merge_candidates(*prompt) for prompt in parts), strict=True)
    width = max(map(len, kept))
    # A place left over repeats a candidate and counts zero times.
    index = np.stack([np.pad(k, (0, width - len(k))) for k in kept])
    counts = np.stack([np.pad(c, (0, width - len(c))) for c in counts])
    answers = jax.vmap(_asked_of)(seen.answers, jnp.asarray(index))
    return answers, jnp.asarray(counts), jnp.asarray(np.stack(target))


def _merge_candidates(rows: Float[np.ndarray, "c s"], counts: Float[np.ndarray, " c"], target: int):
    _, first, number = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    total = np.bincount(number.ravel(), weights=counts, minlength=len(first))
    kept = (total > 0) | (np.arange(len(first)) == number.ravel()[target])
    return first[kept], total[kept], np.cumsum(kept)[number.ravel()[target]] - 1


def _asked_of(kernels: Kernels, index: Int[Array, " c"]) -> Kernels:
    asked, near, apart = kernels.asked[index], kernels.near[index], kernels.apart[:, index]
    return Kernels(kernels.orbits, asked, near, apart)


def _everywhere(kernels: Kernels) -> Float[Array, "P S t n"]:
    """What is apart at every place."""
    n = kernels.orbits.shape[-2]
    if kernels.near.shape[-1] == n:
        return kernels.apart
    rows = jax.vmap(jax.vmap(lambda near, x: jnp.zeros((len(x), n)).at[:, near].add(x), (0, 1), 1))
    return rows(kernels.near, kernels.apart)


def _nearest(kernels: Kernels, width: int | None = None) -> Kernels:
    """The same kernels with so many near places for each element, by default as few as suffice."""
    apart = _everywhere(kernels)
    far = jnp.all(apart == 0, axis=1)
    width = int(jnp.max(jnp.sum(~far, axis=-1))) if width is None else width
    near = jnp.sort(jnp.argsort(far, axis=-1)[..., :width], axis=-1)
    kept = jnp.take_along_axis(apart, near[:, None], axis=-1)
    return Kernels(kernels.orbits, kernels.asked, near, kept)


def stacked(views: list[View]) -> View:
    """One view of all prompts; candidates that a view lacks count zero times."""
    width = max(v.counts.shape[1] for v in views)
    before = np.cumsum([0, *(len(v.kernels) for v in views)])
    wide = [jnp.pad(v.counts, ((0, 0), (0, width - v.counts.shape[1]))) for v in views]
    return View(
        _joined([v.kernels for v in views]),
        jnp.concatenate([v.attends + b for v, b in zip(views, before, strict=False)]),
        _joined([_widened(v.answers, width) for v in views]),
        jnp.concatenate(wide),
        jnp.concatenate([v.target for v in views]),
        jnp.concatenate([v.weight for v in views]),
    )


def _widened(kernels: Kernels, width: int) -> Kernels:
    """The first candidate asked again until there are so many."""
    index = jnp.arange(width)
    index = jnp.where(index < kernels.near.shape[1], index, 0)
    return jax.vmap(_asked_of, (0, None))(kernels, index)


def _joined(parts: list[Kernels]) -> Kernels:
    width = max(part.near.shape[-1] for part in parts)
    return jax.tree.map(lambda *x: jnp.concatenate(x), *(_nearest(part, width) for part in parts))


def _look(tie: Tie, prompt: Prompts):
    """Kernels, answers, counts and target of one prompt."""
    basis, config = tie.basis, tie.basis.configuration
    K, first = basis.positions.motif.size, config.first(len(basis.classes))
    heads, output = (_difference(tie, used) for used in _used_kernels(tie))
    copy, node = config.locate(jnp.append(prompt.tokens, prompt.target))
    place = config.locate(first + prompt.block * K + prompt.offset)
    token = copy[:-1], node[:-1]
    *candidate, counts = _candidates(basis, copy, node)
    orbits = _orbit(config, node[:-1])
    apart = _apart(heads, token, token) + _apart(heads, place, place)
    kernels = _all_near(orbits, orbits, apart)
    toward = _apart(output.swapaxes(1, 2), token, candidate)
    answers = _all_near(orbits, _orbit(config, candidate[1]), toward)
    target = (len(node) - 1) * _roles(basis) + node[-1] - _first_node(config)[node[-1]]
    return kernels, answers, counts, target


def _all_near(orbits, asked, apart: Float[Array, "S t n"]) -> Kernels:
    return Kernels(orbits, asked, jnp.broadcast_to(jnp.arange(len(orbits)), apart.shape[1:]), apart)


def _orbit(config, node: Int[Array, " n"]) -> Float[Array, "n o"]:
    """One-hot rows of the orbits of token nodes."""
    number = config.orbit_of_node
    return jnp.asarray(np.eye(number[-1])[np.minimum(number, number[-1] - 1)], float)[node]


def _apart(difference: Float[np.ndarray, "S nodes nodes"], source, asked) -> Float[Array, "S t n"]:
    """How far K_S[k, t] is from the kernel of different copies, from (copy, node) of k and of t."""
    (copy, node), (copy_asked, node_asked) = source, asked
    values = jnp.asarray(difference, float)[:, node, node_asked[:, None]]
    return jnp.where(copy == copy_asked[:, None], values, 0.0)


def _difference(tie: Tie, used: list[int]) -> Float[np.ndarray, "S nodes nodes"]:
    """Kernel of two nodes in the same copy minus that in different ones."""
    same, other = _on_nodes(tie, used)[:, 1], _on_nodes(tie, used)[:, 0]
    return np.where(tie.basis.configuration.table[1] >= 0, same - other, 0.0)


def _on_nodes(tie: Tie, used: list[int]) -> Float[np.ndarray, "S 2 nodes nodes"]:
    """Values of kernels on each pair of nodes; zero where there is no such pair."""
    table = tie.basis.configuration.table
    return np.where(table >= 0, tie.kernels[used][:, table], 0.0)


@cache
def _background(tie: Tie) -> tuple[Float[np.ndarray, "S o o"], Float[np.ndarray, "T o o"]]:
    """B_S between orbits of tokens in different copies and blocks, for the heads' kernels; for the
    output's, from the prompt's token to the predicted one."""
    last = tie.basis.configuration.orbit_of_node[-1]
    nodes = [list(tie.basis.configuration.orbit_of_node).index(o) for o in range(last + 1)]
    heads, output = (
        _on_nodes(tie, used)[:, 0][:, nodes][:, :, nodes] for used in _used_kernels(tie)
    )
    both = heads + heads[:, -1:] + heads[:, :, -1:] + heads[:, -1:, -1:]
    return both[:, :-1, :-1], (output + output[:, :, -1:])[:, :-1, :-1].swapaxes(1, 2)


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
    c = theta[jnp.asarray(_table(tie, here, [()], _used_kernels(tie)[1], paths))]
    far = jnp.einsum("usv,sop->uvop", c.T, jnp.asarray(_background(tie)[1], c.dtype))
    values = jax.vmap(partial(_through, c.T, far))(rows[:, :, None], seen.answers)[:, 0, 0]
    return Logits(values, seen.counts, seen.target)


def _last_rows(tie: Tie, theta, kernels: Kernels) -> Float[Array, "U n"]:
    """Row of the last place of A_v for every path v of depth L."""
    n, basis = kernels.orbits.shape[-2], tie.basis
    A = jnp.eye(n, dtype=theta.dtype)[None]
    for layer in range(1, basis.layers + 1):
        rows = slice(-1, None) if layer == basis.layers else slice(None)
        causal = jnp.tril(jnp.ones((n, n), bool))[rows]
        attention = [
            jax.nn.softmax(jnp.where(causal, s, -jnp.inf), axis=-1)
            for s in (
                _score(tie, theta, (layer, h + 1), kernels, A, rows) for h in range(basis.heads)
            )
        ]
        deeper = [
            jnp.concatenate([a[None], jnp.einsum("ij,ujk->uik", a, A[1:])]) for a in attention
        ]
        A = jnp.concatenate([A[:, rows], *deeper])
    return A[:, -1]


def _score(tie, theta, head: tuple[int, int], kernels, A, rows: slice) -> Float[Array, "rows n"]:
    """Σ_v (Σ_{u,S} θ_{uSv} A_u K_S) A_vᵀ over the paths in use; A of the empty path is 1."""
    here = [t for t in tie.terms if (t.layer, t.head) == head]
    paths = tie.basis.paths(head[0])
    us, vs = ([(), *(p for p in paths[1:] if p in used)] for used in _paths_in(here))
    c = theta[jnp.asarray(_table(tie, here, us, _used_kernels(tie)[0], vs))]
    u, v = (A[np.array([paths.index(p) for p in side[1:]], int)] for side in (us, vs))
    far = jnp.einsum("usv,sop->uvop", c, jnp.asarray(_background(tie)[0], c.dtype))
    toward = _rows(c[0], far[0], kernels, rows)
    if len(us) > 1:
        toward += _through(c[1:], far[1:], u[:, rows], kernels)
    return toward[0] + jnp.einsum("vik,vjk->ij", toward[1:], v)


def _paths_in(terms: list[Term]) -> tuple[set[Path], set[Path]]:
    return {t.query_path for t in terms}, {t.key_path for t in terms}


def _rows(
    c: Float[Array, "S V"], far: Float[Array, "V o o"], kernels: Kernels, rows: slice
) -> Float[Array, "V i t"]:
    """Σ_S c_{Sv} K_S, rows of it."""
    background = jnp.einsum("ko,vop,tp->vkt", kernels.orbits[rows], far, kernels.asked)
    apart = jnp.einsum("sv,std->vtd", c, kernels.apart)
    if _all_are_near(kernels):
        return background + apart.swapaxes(1, 2)[:, rows]
    places = jnp.arange(len(kernels.orbits))[rows, None, None]
    return background + jnp.sum(jnp.where(kernels.near == places, apart[:, None], 0.0), axis=-1)


def _through(
    c: Float[Array, "U S V"], far: Float[Array, "U V o o"], x: Float[Array, "U i n"], kernels
) -> Float[Array, "V i t"]:
    """Σ_{u,S} c_{uSv} x_u K_S."""
    background = jnp.einsum("uio,uvop,tp->vit", x @ kernels.orbits, far, kernels.asked)
    if _all_are_near(kernels):
        return background + jnp.einsum("usv,uik,stk->vit", c, x, kernels.apart)
    return background + jnp.einsum("usv,uitd,std->vit", c, x[:, :, kernels.near], kernels.apart)


def _all_are_near(kernels: Kernels) -> bool:
    return kernels.near.shape[-1] == kernels.orbits.shape[-2]


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
