"""Losses and probabilities from logits that stand for a whole vocabulary.

Tokens with equal logits are one candidate with a count, and candidates that several prompts have in
common are listed once. Shapes: `P` prompts, `c` candidates of their own, `A` lists of `s` shared
ones.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Shared(eqx.Module):
    """Logits that prompts have in common, and which list each prompt `uses`.

    `highest` bounds them from above: a constant that no derivative goes through.
    """

    values: Float[Array, "A s"]
    counts: Float[Array, "A s"]
    uses: Int[Array, " P"]
    highest: Float[Array, " A"]


class Logits(eqx.Module):
    """Logits of the candidates, how many tokens each stands for, and which is the target."""

    values: Float[Array, "P c"]
    counts: Float[Array, "P c"]
    target: Int[Array, " P"]
    shared: Shared | None = None


def log_partition(out: Logits) -> Float[Array, " P"]:
    """log Σ_t exp(logit_t) over the whole vocabulary."""
    own, shared = out.values, out.shared
    if shared is None:
        return jax.nn.logsumexp(own, b=out.counts, axis=-1)
    high = jax.lax.stop_gradient(jnp.maximum(jnp.max(own, axis=-1), shared.highest[shared.uses]))
    others = jnp.sum(shared.counts * jnp.exp(shared.values - shared.highest[:, None]), axis=-1)
    total = jnp.sum(out.counts * jnp.exp(own - high[:, None]), axis=-1)
    total += others[shared.uses] * jnp.exp(shared.highest[shared.uses] - high)
    return jnp.log(total) + high


def target_logit(out: Logits) -> Float[Array, " P"]:
    """The logit of the right answer."""
    return jnp.take_along_axis(out.values, out.target[:, None], axis=1)[:, 0]


def probability(out: Logits) -> Float[Array, " P"]:
    """p(target) under the softmax."""
    return jnp.exp(target_logit(out) - log_partition(out))


def cross_entropy(out: Logits) -> Float[Array, " P"]:
    """−log p(target), in nats."""
    return log_partition(out) - target_logit(out)


def squared_error(out: Logits) -> Float[Array, " P"]:
    """½ Σ_t (logit_t − [t = target])² over the whole vocabulary (the loss of arXiv 2511.01033)."""
    squares = jnp.sum(out.counts * out.values**2, axis=-1)
    if out.shared is not None:
        shared = jnp.sum(out.shared.counts * out.shared.values**2, axis=-1)
        squares += shared[out.shared.uses]
    return 0.5 * squares - target_logit(out) + 0.5


LOSSES: dict[str, Callable[[Logits], Float[Array, " P"]]] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
}
