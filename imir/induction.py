"""The forward pass on the (α, β, γ, δ) submanifold: O(n) for a prompt, not O(n²).

    layer 1:  place j attends to the place before it in its block with weight e^α, to others with 1
    layer 2:  a = softmax_j(β r_j), r_j what layer 1 carries of the query's token from places ≤ j
    logits:   γ Σ_j a_j [token_j = t] + δ [t is the query's associate]

Only the last row of layer 2 is needed, and r_j follows from running counts. Tokens that stand once
have the logit γ a_j; the few *tracked* ones (repeated, target, associate) and the rest of the
vocabulary are candidates of their own. Kinds of query that see the same places share all but those.

`imir.reduced` is the reference that this pass is tested against.
Shapes: `n` tokens, `A` different sights, `R` tracked tokens, `P` prompts.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from imir.canonical import ALPHA, BETA, DELTA, GAMMA
from imir.prompts import Prompts
from imir.readout import Logits, Shared
from imir.ties import Tie


class Sights(eqx.Module):
    """What the heads see, independent of the coordinates.

    `earlier` counts the query's token up to each place, `before` says whether it stands just
    before in the block, `follows` whether anything does; `alone` marks tokens that stand once and
    are not tracked, `tracked` the places of those that are.
    """

    earlier: Float[Array, "A n"]
    before: Float[Array, "A n"]
    follows: Bool[Array, "A n"]
    alone: Float[Array, "A n"]
    tracked: Float[Array, "A R n"]


class View(eqx.Module):
    """What (α, β, γ, δ) see of `P` prompts, each of which `attends` with one of the sights.

    Its candidates are the tracked tokens and the rest of the vocabulary, standing for `counts`
    tokens each; δ raises the `associate`.
    """

    sights: Sights
    attends: Int[Array, " P"]
    counts: Float[Array, "P R+1"]
    associate: Float[Array, "P R+1"]
    target: Int[Array, " P"]
    weight: Float[Array, " P"]


def view(tie: Tie, letters: int, prompts: Prompts) -> View:
    """Look at every prompt of a task whose template has so many letters; only they repeat."""
    sights, candidates = jax.vmap(partial(_look, tie, letters))(prompts)
    return View(sights, jnp.arange(len(prompts)), *candidates, prompts.weight)


def _look(tie: Tie, letters: int, prompt: Prompts):
    tokens = prompt.tokens
    is_query = (tokens == tokens[-1]).astype(float)
    follows = jnp.append(False, prompt.block[1:] == prompt.block[:-1])
    before = jnp.append(0.0, is_query[:-1]) * follows
    associate, remembered = _associate(tie, tokens[-1])
    token, valid, place = _tracked(tokens, letters, prompt.target, associate, remembered)
    where = (token[:, None] == tokens) & valid[:, None]
    alone = ~jnp.any(where, axis=0)
    total = sum(relation.size for relation in tie.basis.classes)
    rest = total - jnp.sum(valid) - jnp.sum(alone)
    counts = jnp.append(valid, rest).astype(float)
    raised = remembered & (jnp.arange(len(counts)) == place[1])
    sights = Sights(jnp.cumsum(is_query), before, follows, alone.astype(float), where.astype(float))
    return sights, (counts, raised.astype(float), place[0])


def _associate(tie: Tie, query: Int[Array, ""]) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """The token whose logit δ raises, and whether there is one."""
    config = tie.basis.configuration
    steps = np.zeros(config.nodes, np.int32)
    if DELTA in tie.names:
        (term,) = (t for t in tie.terms if t.coordinate == tie.names.index(DELTA))
        for t, q in np.argwhere(tie.kernels[term.kernel][config.table[1]] * (config.table[1] >= 0)):
            steps[q] = t - q
    step = jnp.asarray(steps)[config.locate(query)[1]]
    return query + step, step != 0


def _tracked(tokens, letters: int, target, associate, remembered):
    """Repeated tokens, the target and the associate, each valid once; places of the last two."""
    same = tokens[:, None] == tokens
    repeated = ~jnp.any(jnp.tril(same, -1), axis=1) & (jnp.sum(same, axis=1) > 1)
    (places,) = jnp.nonzero(repeated, size=letters, fill_value=len(tokens))
    token = jnp.concatenate([tokens[places], jnp.stack([target, associate])])
    known = jnp.concatenate([places < len(tokens), jnp.stack([jnp.array(True), remembered])])
    equal = (token[:, None] == token) & known & known[:, None]
    place = jnp.argmax(equal[-2:], axis=1)
    return token, known & (jnp.argmax(equal, axis=1) == jnp.arange(len(token))), place


def compressed(seen: View) -> View:
    """The same view with no sight twice and no rows of nowhere. Outside of jit only."""
    sights = [np.asarray(x) for x in jax.tree.leaves(seen.sights)]
    rows = np.concatenate([x.reshape(len(x), -1) for x in sights], axis=1)
    _, first, number = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    attends = jnp.asarray(number.ravel()[np.asarray(seen.attends)])
    placed = np.any(np.asarray(seen.sights.tracked), axis=(0, 2))
    order = np.argsort(~np.append(placed, False), kind="stable")
    kept = jax.tree.map(lambda x: x[first], seen.sights)
    kept = eqx.tree_at(lambda s: s.tracked, kept, kept.tracked[:, placed])
    target = jnp.asarray(np.argsort(order))[seen.target]
    return View(kept, attends, seen.counts[:, order], seen.associate[:, order], target, seen.weight)


def stacked(views: list[View]) -> View:
    """One view of all prompts; a tracked token that a view has no place for stands nowhere."""
    before = np.cumsum([0, *(len(v.sights.earlier) for v in views)])
    width = max(v.sights.tracked.shape[1] for v in views)

    def moved(v: View, first: int) -> View:
        wide = ((0, 0), (0, width - v.sights.tracked.shape[1]), (0, 0))
        replaced = v.attends + first, jnp.pad(v.sights.tracked, wide)
        return eqx.tree_at(lambda v: (v.attends, v.sights.tracked), v, replaced)

    parts = [moved(v, int(first)) for v, first in zip(views, before, strict=False)]
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)


def logits(tie: Tie, coordinates: Float[Array, " C"], seen: View) -> Logits:
    """Logits of every viewed prompt at its last place."""
    value = dict(zip(tie.names, coordinates, strict=True))
    alpha, beta, gamma, delta = (value.get(name, 0.0) for name in (ALPHA, BETA, GAMMA, DELTA))
    attention = jax.nn.softmax(beta * _carried(alpha, seen.sights), axis=-1)
    copied = gamma * jnp.einsum("arn,an->ar", seen.sights.tracked, attention)
    unplaced = seen.counts.shape[1] - copied.shape[1]
    own = jnp.pad(copied, ((0, 0), (0, unplaced)))[seen.attends] + delta * seen.associate
    highest = jnp.maximum(gamma, 0.0) * jnp.max(attention, axis=-1)
    shared = Shared(gamma * attention, seen.sights.alone, seen.attends, highest)
    return Logits(own, seen.counts, seen.target, shared)


def _carried(alpha, seen: Sights) -> Float[Array, "A n"]:
    """Share of the query's token in what layer 1 writes at each place.

    The weights e^α : 1 are scaled so that the larger one is 1.
    """
    j = jnp.arange(1.0, seen.earlier.shape[-1] + 1)
    previous, other = jnp.exp(jnp.minimum(alpha, 0)), jnp.exp(-jnp.maximum(alpha, 0))
    heard = (seen.earlier - seen.before) * other + seen.before * previous
    return jnp.where(seen.follows, heard / ((j - 1) * other + previous), seen.earlier / j)
