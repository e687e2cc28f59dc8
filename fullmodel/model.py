"""The full model: a causal transformer (arXiv 2607.11875, section 3).

    X ← tokens + positions                residual stream of a prompt, one row for each place
    A^(ℓ,h) = causal softmax(X W^(ℓ,h) Xᵀ)                    query rows, key columns, no 1/√d
    X ← X + Σ_h A^(ℓ,h) X V^(ℓ,h)ᵀ
    logit_t = token_t · R · x             x the last row after the last layer

In the theorem's model W and R are trained, embeddings and V are fixed. An `Architecture` may train
those too, factorise W = Q Kᵀ/√k, turn queries and keys by their place, norm the stream, and add
feed-forward layers X ← X + gelu(X W_in) W_out.

Shapes: `P` prompts of `n` tokens, `V` tokens, `L` layers, `H` heads, `d` dimensions, `k` of a
factorised head, `f` hidden units.
"""

from collections.abc import Callable
from dataclasses import fields

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from fullmodel.architecture import Architecture
from fullmodel.frames import Frame
from imir.prompts import Prompts

EPSILON = 1e-5


class Weights(eqx.Module):
    """What a full model trains: W^(ℓ,h) and R. Its gradients have the same form.

    Other architectures train more, or have Q and K in place of W: what is not there is `None`.
    Gains are those of the norms after or before attention and feed-forward layers; the last one
    belongs to the norm before the logits.
    """

    key_query: Float[Array, "*batch L H d d"] | None
    readout: Float[Array, "*batch d d"]
    query: Float[Array, "*batch L H d k"] | None = None
    key: Float[Array, "*batch L H d k"] | None = None
    tokens: Float[Array, "*batch V d"] | None = None
    positions: Float[Array, "*batch places d"] | None = None
    output_value: Float[Array, "*batch L H d d"] | None = None
    gains: Float[Array, "*batch G d"] | None = None
    into: Float[Array, "*batch L d f"] | None = None
    out_of: Float[Array, "*batch L f d"] | None = None


NAMES = tuple(f.name for f in fields(Weights))


class Fixed(nnx.Variable):
    """An array that is not trained."""


class Transformer(nnx.Module):
    """The full model on a frame, with given weights of the frame's shapes and dtype.

    By default the theorem's, with as many layers and heads as the frame has. `products` is the
    dtype of matrix products, whose sums are always those of the weights' dtype. Raises `ValueError`
    where shapes or dtypes differ.
    """

    tokens: nnx.Variable
    positions: nnx.Variable
    output_value: nnx.Variable
    readout: nnx.Variable
    key_query: nnx.Variable
    query: nnx.Variable
    key: nnx.Variable
    gains: nnx.Variable
    into: nnx.Variable
    out_of: nnx.Variable

    def __init__(
        self,
        frame: Frame,
        weights: Weights,
        architecture: Architecture | None = None,
        products: str | None = None,
    ) -> None:
        L, H = frame.output_value.shape[:2]
        self.architecture = architecture or Architecture(L, H)
        _check(frame, weights, self.architecture)
        self.ring, self.products = frame.ring, products
        for name in ("tokens", "positions", "output_value"):
            if getattr(weights, name) is None:
                setattr(self, name, Fixed(getattr(frame, name)))
        for name in NAMES:
            if getattr(weights, name) is not None:
                setattr(self, name, nnx.Param(getattr(weights, name)))

    @property
    def weights(self) -> Weights:
        """Everything that is trained."""
        trained = {
            name: x[...] for name in NAMES if isinstance(x := getattr(self, name, None), nnx.Param)
        }
        return Weights(**{"key_query": None, **trained})

    @property
    def merged(self) -> Float[Array, "L H d d"]:
        """W^(ℓ,h), or the product Q Kᵀ/√k that stands for it."""
        if self.architecture.key_query == "merged":
            return self.key_query[...]
        Q, K = self.query[...], self.key[...]
        return Q @ jnp.swapaxes(K, -1, -2) / jnp.sqrt(Q.shape[-1])

    def __call__(self, prompts: Prompts) -> Float[Array, "P V"]:
        """Logits of every token at the last place of each prompt."""
        return self.logits(prompts, slice(-1, None))[:, -1]

    def logits(self, prompts: Prompts, rows: slice = slice(None)) -> Float[Array, "P rows V"]:
        """Logits of every token at the wanted places of each prompt."""
        X = self._embedded(prompts)
        for layer in range(self.architecture.layers):
            last = layer == self.architecture.layers - 1
            X = self._layer(X, layer, rows if last else slice(None))
        if self.architecture.norm_place == "before":
            X = self._normed(X, -1)
        return self._product("pid,ed,te->pit", X, self.readout[...], self.tokens[...])

    def _embedded(self, prompts: Prompts) -> Float[Array, "P n d"]:
        place = prompts.block * self.ring + prompts.offset
        if self.architecture.positions == "absolute":
            place = jnp.arange(prompts.length)
        return self.tokens[...][prompts.tokens] + self.positions[...][place]

    def _layer(self, X: Float[Array, "P n d"], layer: int, rows: slice) -> Float[Array, "P rows d"]:
        """The residual stream after a layer, in the wanted rows."""
        first = layer * (2 if self.architecture.feed_forward else 1)
        after = self.architecture.norm_place == "after"
        read = X if after else self._normed(X, first)
        X = X[:, rows] + self._attention(read, layer, rows)
        X = self._normed(X, first) if after else X
        if not self.architecture.feed_forward:
            return X
        read = X if after else self._normed(X, first + 1)
        hidden = self._product("pid,df->pif", read, self.into[...][layer])
        hidden = jax.nn.gelu(hidden, approximate=False)
        X = X + self._product("pif,fd->pid", hidden, self.out_of[...][layer])
        return self._normed(X, first + 1) if after else X

    def _attention(self, X: Float[Array, "P n d"], layer: int, rows: slice):
        """Σ_h A^(h) X V^(h)ᵀ in the wanted rows."""
        n = X.shape[1]
        causal = jnp.tril(jnp.ones((n, n), bool))[rows]
        scores = self._scores(X, layer, rows)
        A = jax.nn.softmax(jnp.where(causal[:, None], scores, -jnp.inf), axis=-1)
        read = self._product("pihj,pje->pihe", A, X)
        return self._product("pihe,hde->pid", read, self.output_value[...][layer])

    def _scores(self, X: Float[Array, "P n d"], layer: int, rows: slice):
        """Queries in the wanted rows with all keys: x W xᵀ, or (x Q)(x K)ᵀ/√k."""
        if self.architecture.key_query == "merged":
            queries = self._product("pid,hde->pihe", X[:, rows], self.key_query[...][layer])
            return self._product("pihe,pje->pihj", queries, X)
        Q, K = self.query[...][layer], self.key[...][layer]
        queries = self._product("pid,hdk->pihk", X[:, rows], Q) / jnp.sqrt(Q.shape[-1])
        keys = self._product("pjd,hdk->pjhk", X, K)
        if self.architecture.positions == "rotary":
            queries, keys = _turned(queries, jnp.arange(X.shape[1])[rows]), _turned(keys)
        return self._product("pihk,pjhk->pihj", queries, keys)

    def _normed(self, X: Float[Array, "P n d"], which: int) -> Float[Array, "P n d"]:
        if self.architecture.norm == "none":
            return X
        if self.architecture.norm == "layer":
            X = X - jnp.mean(X, axis=-1, keepdims=True)
        scale = jax.lax.rsqrt(jnp.mean(X**2, axis=-1, keepdims=True) + EPSILON)
        return self.gains[...][which] * X * scale

    def _product(self, spec: str, *factors: Array) -> Array:
        """An einsum whose products may have fewer bits than their sums."""
        if self.products is None:
            return jnp.einsum(spec, *factors)
        dtype = self.readout[...].dtype
        short = [x.astype(self.products) for x in factors]
        return jnp.einsum(spec, *short, preferred_element_type=dtype)


def _turned(x: Float[Array, "P i H k"], place: Int[Array, " i"] | None = None):
    """Rotary positions: the two halves of a head are turned by place · 10000^(−2m/k)."""
    place = jnp.arange(x.shape[1]) if place is None else place
    half = x.shape[-1] // 2
    angle = place[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    cos, sin = (f(angle)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def shapes(frame: Frame, architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """The shape of each array of `Weights` that an architecture has."""
    (V, d), (places, _), (L, H, _, _) = (
        x.shape for x in (frame.tokens, frame.positions, frame.output_value)
    )
    k, f = architecture.inner(d), architecture.feed_forward
    merged, hidden = architecture.key_query == "merged", (L, d, f) if f else None
    gains = (L * (2 if f else 1) + (architecture.norm_place == "before"), d)
    wanted = {
        "key_query": (L, H, d, d) if merged else None,
        "readout": (d, d),
        "query": None if merged else (L, H, d, k),
        "key": None if merged else (L, H, d, k),
        "tokens": (V, d) if architecture.embedding == "learned" else None,
        "positions": (places, d) if architecture.positions == "absolute" else None,
        "output_value": (L, H, d, d) if architecture.output_value == "learned" else None,
        "gains": None if architecture.norm == "none" else gains,
        "into": hidden,
        "out_of": (L, f, d) if f else None,
    }
    return {name: shape for name, shape in wanted.items() if shape is not None}


def _check(frame: Frame, weights: Weights, architecture: Architecture) -> None:
    L, H, _, _ = frame.output_value.shape
    if (architecture.layers, architecture.heads) != (L, H):
        raise ValueError(
            f"Argument `architecture` must have the frame's {L} layers of {H} heads, "
            f"but has {architecture.layers} of {architecture.heads}."
        )
    dtype, wanted = frame.tokens.dtype, shapes(frame, architecture)
    for name in NAMES:
        found = getattr(weights, name)
        asked = _described(wanted[name], dtype) if name in wanted else "none"
        given = "none" if found is None else _described(found.shape, found.dtype)
        if given != asked:
            raise ValueError(f"Argument `weights` must have as {name} {asked}, but has {given}.")


def _described(shape: tuple[int, ...], dtype) -> str:
    return f"an array of shape {shape} and dtype {dtype}"


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
    """Σ weight · loss over the prompts; `loss` is a name in `LOSSES`.

    With `predict="repeated"` a prompt's loss is the mean over the places whose next token the
    context tells (see `repeated`), the last place among them.
    """
    if loss not in LOSSES:
        raise ValueError(f"Argument `loss` must be one of {', '.join(LOSSES)}, but is {loss!r}.")
    if model.architecture.predict == "last":
        each = LOSSES[loss](model(prompts), prompts.target)
    else:
        told, following = repeated(prompts)
        logits = model.logits(prompts)
        many = LOSSES[loss](logits.reshape(-1, logits.shape[-1]), following.ravel())
        each = jnp.sum(told * many.reshape(told.shape), axis=1) / jnp.sum(told, axis=1)
    return jnp.sum(prompts.weight.astype(each.dtype) * each)


@jax.jit
def right_answers(model: Transformer, prompts: Prompts) -> Float[Array, ""]:
    """Σ weight · p(target), the mean probability of the right answer."""
    return prompts.weight @ jnp.exp(-cross_entropy(model(prompts), prompts.target))


def repeated(prompts: Prompts) -> tuple[Bool[Array, "P n"], Int[Array, "P n"]]:
    """Places whose token occurred before with the same token after it, and what follows each place.

    The last place, which the target follows, always counts.
    """
    following = jnp.concatenate([prompts.tokens[:, 1:], prompts.target[:, None]], axis=1)
    pairs = jnp.stack([prompts.tokens, following], axis=-1)
    equal = jnp.all(pairs[:, :, None] == pairs[:, None], axis=-1)
    told = jnp.any(jnp.tril(equal, -1), axis=-1)
    return told.at[:, -1].set(True), following
