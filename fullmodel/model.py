"""The full model: an attention-only causal transformer (arXiv 2607.11875, section 3).

    X ← tokens + positions                residual stream of a prompt, one row for each place
    A^(ℓ,h) = causal softmax(X W^(ℓ,h) Xᵀ)                    query rows, key columns, no 1/√d
    X ← X + Σ_h A^(ℓ,h) X V^(ℓ,h)ᵀ
    logit_t = token_t · R · x             x the last row after the last layer

Trained are the key-query matrices W and the readout R; embeddings and V are fixed.

Shapes: `P` prompts of `n` tokens, `V` tokens, `L` layers, `H` heads, `d` dimensions.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from fullmodel.frames import Frame
from imir.prompts import Prompts


class Weights(eqx.Module):
    """What a full model trains: W^(ℓ,h) and R. Its gradients have the same form."""

    key_query: Float[Array, "*batch L H d d"]
    readout: Float[Array, "*batch d d"]


class Fixed(nnx.Variable):
    """An array that is not trained."""


class Transformer(nnx.Module):
    """The full model on a frame, with given weights of the frame's shapes and dtype.

    Raises `ValueError` where shapes or dtypes differ.
    """

    def __init__(self, frame: Frame, weights: Weights) -> None:
        _check(frame, weights)
        self.tokens = Fixed(frame.tokens)
        self.positions = Fixed(frame.positions)
        self.output_value = Fixed(frame.output_value)
        self.ring = frame.ring
        self.key_query = nnx.Param(weights.key_query)
        self.readout = nnx.Param(weights.readout)

    @property
    def weights(self) -> Weights:
        return Weights(self.key_query[...], self.readout[...])

    def __call__(self, prompts: Prompts) -> Float[Array, "P V"]:
        """Logits of every token at the last place of each prompt."""
        place = prompts.block * self.ring + prompts.offset
        X = self.tokens[...][prompts.tokens] + self.positions[...][place]
        for W, V in zip(self.key_query[:-1], self.output_value[:-1], strict=True):
            X = _layer(X, W, V, slice(None))
        X = _layer(X, self.key_query[-1], self.output_value[-1], slice(-1, None))
        return X[:, -1] @ self.readout[...].T @ self.tokens[...].T


def _check(frame: Frame, weights: Weights) -> None:
    L, H, d, _ = frame.output_value.shape
    dtype = frame.tokens.dtype
    wanted = {"key_query": (L, H, d, d), "readout": (d, d)}
    for name, shape in wanted.items():
        found = getattr(weights, name)
        if (found.shape, found.dtype) != (shape, dtype):
            raise ValueError(
                f"Argument `weights` must have a {name} of shape {shape} and dtype {dtype}, "
                f"but has {found.shape} and {found.dtype}."
            )


def _layer(
    X: Float[Array, "P n d"], W: Float[Array, "H d d"], V: Float[Array, "H d d"], rows: slice
) -> Float[Array, "P rows d"]:
    """The residual stream after a layer, in the wanted rows."""
    n = X.shape[1]
    causal = jnp.tril(jnp.ones((n, n), bool))[rows]
    queries = jnp.einsum("pid,hde->pihe", X[:, rows], W)
    scores = jnp.einsum("pihe,pje->pihj", queries, X)
    A = jax.nn.softmax(jnp.where(causal[:, None], scores, -jnp.inf), axis=-1)
    read = jnp.einsum("pihj,pje->pihe", A, X)
    return X[:, rows] + jnp.einsum("pihe,hde->pid", read, V)


def cross_entropy(logits: Float[Array, "P V"], target: Int[Array, " P"]) -> Float[Array, " P"]:
    """−log p(target), in nats."""
    return jax.nn.logsumexp(logits, axis=-1) - _at(logits, target)


def squared_error(logits: Float[Array, "P V"], target: Int[Array, " P"]) -> Float[Array, " P"]:
    """½ Σ_t (logit_t − [t = target])²."""
    return 0.5 * jnp.sum(logits**2, axis=-1) - _at(logits, target) + 0.5


def _at(logits: Float[Array, "P V"], target: Int[Array, " P"]) -> Float[Array, " P"]:
    return jnp.take_along_axis(logits, target[:, None], axis=1)[:, 0]


LOSSES: dict[str, Callable[[Array, Array], Array]] = {
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
}


def expected_loss(
    model: Transformer, prompts: Prompts, loss: str = "cross_entropy"
) -> Float[Array, ""]:
    """Σ weight · loss over the prompts; `loss` is a name in `LOSSES`."""
    if loss not in LOSSES:
        raise ValueError(f"Argument `loss` must be one of {', '.join(LOSSES)}, but is {loss!r}.")
    each = LOSSES[loss](model(prompts), prompts.target)
    return jnp.sum(prompts.weight.astype(each.dtype) * each)
