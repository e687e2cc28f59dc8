"""A soft-attention transformer that reads a bit string and an end token (arXiv 2606.08768).

    X_j = token(x_j) + position_j,  j = 1 … N+1, where x_{N+1} is the end token
    attention(X) = Σ_h softmax(X Q_h (X K_h)ᵀ / √(D/H)) X V_h O_h      every place sees every place
    feed(x) = relu(x U + b) W + c                                      where there is one
    norm(x) = (x − mean x) / √(σ²(x) + ε)                              over the D coordinates

    none:  X ← X + attention(X),        X ← X + feed(X)
    post:  Y = X + attention(X),        X ← norm(Y + feed(Y))          one norm a layer, the paper's
    pre:   X ← X + attention(norm(X)),  X ← X + feed(norm(X)),         and a last norm at the end

    logit(x) = X_{N+1} · readout + bias;    f(x) = 1 iff logit(x) > 0

f is recognised with margin ξ where |logit(x)| ≥ ξ for all x. A layer norm has no gain and shift of
its own. At ε = 0 the norm of a constant vector is taken to be the zero vector: what has no
direction adds none. A vector is constant where σ is at most 8 units in the last place of its mean.

Shapes: `M` models, `B` strings of `N` bits, `L` layers, `H` heads, `D` dimensions, `F` hidden
units, `S` layer norms, `W` words of a truth table.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int, Key, UInt8, UInt32, UInt64

from fullmodel.boolean.functions import Function, as_words, checked

Norm = Literal["post", "pre", "none"]
Positions = Literal["learned", "fixed"]
Rule = Literal["uniform", "gaussian", "xavier_uniform", "xavier_gaussian"]
RULES: tuple[Rule, ...] = ("uniform", "gaussian", "xavier_uniform", "xavier_gaussian")


@dataclass(frozen=True)
class Architecture:
    """Everything about a recogniser but its parameters.

    Raises `ValueError` for sizes that are not positive, a width that the heads do not divide, and
    a negative ε.
    """

    length: int
    """N, bits of a string."""
    layers: int = 2
    heads: int = 2
    width: int = 16
    """D."""
    feedforward: int | None = 64
    """F, hidden units of the feed-forward layers; None for attention alone."""
    norm: Norm = "post"
    epsilon: float = 1e-5
    """ε of the layer norm."""
    positions: Positions = "learned"
    """Learned with the rest, or fixed sines and cosines."""

    def __post_init__(self) -> None:
        for name in ("length", "layers", "heads", "width", "feedforward"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"Argument `{name}` must be at least 1, but is {size}.")
        if self.width % self.heads:
            raise ValueError(
                f"Argument `width` must be divisible by the {self.heads} heads, "
                f"but is {self.width}."
            )
        if not 0 <= self.epsilon < np.inf:
            raise ValueError(f"Argument `epsilon` must not be negative, but is {self.epsilon}.")

    @property
    def norms(self) -> tuple[int, ...]:
        """The layer (from 0) of each layer norm, in order; L for the last norm of pre."""
        if self.norm == "none":
            return ()
        twice = self.norm == "pre" and self.feedforward is not None
        layers = np.repeat(np.arange(self.layers), 2 if twice else 1).tolist()
        return (*layers, self.layers) if self.norm == "pre" else tuple(layers)


class Parameters(eqx.Module):
    """All that is drawn or trained; a leading axis of models where there are several."""

    tokens: Float[Array, "*models 3 D"]
    """0, 1 and end."""
    positions: Float[Array, "*models N+1 D"] | None
    query: Float[Array, "*models L D D"]
    key: Float[Array, "*models L D D"]
    value: Float[Array, "*models L D D"]
    output: Float[Array, "*models L D D"]
    """Heads are consecutive columns of query, key and value, and rows of output."""
    up: Float[Array, "*models L D F"] | None
    up_bias: Float[Array, "*models L F"] | None
    down: Float[Array, "*models L F D"] | None
    down_bias: Float[Array, "*models L D"] | None
    readout: Float[Array, "*models D"]
    bias: Float[Array, "*models"]


@dataclass(frozen=True)
class Initialization:
    """How parameters are drawn, with scale s > 0.

    uniform: U(−s, s); gaussian: N(0, s²); both for every parameter. xavier_uniform: U(−a, a) with
    a = s √(6 / (in + out)); xavier_gaussian: N(0, 2 s² / (in + out)); both for matrices (tokens
    and positions are matrices of as many rows as there are), biases are zero.
    """

    rule: Rule = "xavier_uniform"
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(
                f"Argument `rule` must be one of {', '.join(RULES)}, but is {self.rule!r}."
            )
        if not 0 < self.scale < np.inf:
            raise ValueError(f"Argument `scale` must be positive, but is {self.scale}.")


class Tables(NamedTuple):
    """What models compute: truth tables, and how surely."""

    words: UInt64[np.ndarray, "*models W"]
    """Packed truth tables; the order of their bits is that of `functions`."""
    margin: Float[np.ndarray, "*models"]
    """min_x |logit(x)|: the largest margin ξ with which the model recognises its function."""


def shapes(architecture: Architecture) -> Parameters:
    """The shape of each parameter, in the parameters' own structure."""
    a, L, D, F = architecture, architecture.layers, architecture.width, architecture.feedforward
    square = (L, D, D)
    feed = (None,) * 4 if F is None else ((L, D, F), (L, F), (L, F, D), (L, D))
    positions = (a.length + 1, D) if a.positions == "learned" else None
    found = ((3, D), positions, *(square,) * 4, *feed, (D,), ())
    return Parameters(*found)  # pyright: ignore[reportArgumentType]


def initial(
    architecture: Architecture, initialization: Initialization, key: Key[Array, ""]
) -> Parameters:
    """Parameters of one model at random, in the default floating-point type; see `Initialization`.

    Vmapped over keys it draws many models.
    """
    draw = unit_draw(architecture, initialization)
    return placed(architecture, spread(architecture, initialization), draw(key))


def placed(architecture: Architecture, spread: Parameters, unit: Float[Array, " P"]) -> Parameters:
    """Parameters from one row of them all, in units of the spread of their law."""
    zeros = jax.tree.map(jnp.zeros, shapes(architecture), is_leaf=_is_shape)
    return jax.tree.map(jnp.multiply, spread, ravel_pytree(zeros)[1](unit))


def unit_draw(architecture: Architecture, initialization: Initialization) -> Partial:
    """Draws all parameters in one row, in units of their spread.

    One draw for all: the generator takes long to compile.
    """
    sizes = jax.tree.leaves(shapes(architecture), is_leaf=_is_shape)
    uniform = initialization.rule.endswith("uniform")
    return Partial(_uniform if uniform else _gaussian, int(sum(map(np.prod, sizes))))


def _uniform(count: int, key: Key[Array, ""]) -> Float[Array, " P"]:
    return jax.random.uniform(key, (count,), minval=-1.0)


def _gaussian(count: int, key: Key[Array, ""]) -> Float[Array, " P"]:
    return jax.random.normal(key, (count,))


def spread(architecture: Architecture, initialization: Initialization) -> Parameters:
    """Of each parameter's law: half the width where it is uniform, else the standard deviation."""
    wanted, s = shapes(architecture), initialization.scale
    matrices = (wanted.tokens, wanted.positions)

    def scale(shape: tuple[int, ...]) -> float:
        if not initialization.rule.startswith("xavier"):
            return s
        if len(shape) == 0 or (len(shape) == 2 and all(shape is not m for m in matrices)):
            return 0.0
        fans = shape[-2:] if len(shape) > 1 else (*shape, 1)
        return s * np.sqrt((6 if initialization.rule == "xavier_uniform" else 2) / sum(fans))

    return jax.tree.map(scale, wanted, is_leaf=_is_shape)


def _is_shape(x: object) -> bool:
    return isinstance(x, tuple)


def margins(
    architecture: Architecture, parameters: Parameters, bits: Int[Array, "B N"] | Bool[Array, "B N"]
) -> Float[Array, " B"]:
    """logit(x) of one model at the end token of each string; pure, to be jitted and vmapped."""
    _, X = _forward(architecture, parameters, bits, slice(-1, None))
    return X[:, -1] @ parameters.readout + parameters.bias


def variances(
    architecture: Architecture, parameters: Parameters, bits: Int[Array, "B N"] | Bool[Array, "B N"]
) -> Float[Array, "B S N+1"]:
    """σ² of what each of the S layer norms reads, at every place; pure, one model.

    The layer of each norm stands in `architecture.norms`.
    """
    found, _ = _forward(architecture, parameters, bits, slice(None))
    return jnp.stack(found, axis=1) if found else jnp.zeros((len(bits), 0, bits.shape[1] + 1))


def _forward(
    architecture: Architecture, parameters: Parameters, bits: Array, last: slice
) -> tuple[list[Array], Array]:
    """σ² at each norm, and the last layer's output in the wanted rows."""
    a, p, found = architecture, parameters, []

    def norm(X: Array, here: bool) -> Array:
        if not here:
            return X
        variance, X = _normalize(X, a.epsilon)
        found.append(variance)
        return X

    X = _embedded(a, p, bits)
    for layer in range(a.layers):
        rows = last if layer == a.layers - 1 else slice(None)
        Y = norm(X, a.norm == "pre")
        X = X[:, rows] + _attention(a, p, layer, Y, rows)
        if a.feedforward is not None:
            X = X + _feed(p, layer, norm(X, a.norm == "pre"))
        X = norm(X, a.norm == "post")
    return found, norm(X, a.norm == "pre")


def _embedded(architecture: Architecture, p: Parameters, bits: Array) -> Float[Array, "B N+1 D"]:
    positions = p.positions
    if positions is None:
        positions = jnp.asarray(sinusoids(architecture), p.tokens.dtype)
    zero, one = (token + positions[:-1] for token in p.tokens[:2])
    X = jnp.where(bits[:, :, None] != 0, one, zero)
    end = jnp.broadcast_to(p.tokens[2] + positions[-1], (len(bits), 1, architecture.width))
    return jnp.concatenate([X, end], axis=1)


def sinusoids(architecture: Architecture) -> Float[np.ndarray, "N+1 D"]:
    """Fixed positions: sines, then cosines, of wavelengths from 2π to 2π · 10⁴."""
    half = -(-architecture.width // 2)
    rates = 10_000.0 ** -(np.arange(half) / max(half, 1))
    angles = np.arange(architecture.length + 1)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, : architecture.width]


def _attention(
    architecture: Architecture, p: Parameters, layer: int, X: Array, rows: slice
) -> Float[Array, "B rows D"]:
    heads = (architecture.heads, architecture.width // architecture.heads)
    q = (X[:, rows] @ p.query[layer] / np.sqrt(heads[1])).reshape(len(X), 1, -1, *heads)
    k, v = ((X @ W[layer]).reshape(*X.shape[:2], 1, *heads) for W in (p.key, p.value))
    # Sums of products, not small matrix products: keys come first, so that all sums but that of
    # the score run over whole vectors.
    A = jax.nn.softmax(jnp.sum(q * k, axis=-1, keepdims=True), axis=1)
    read = jnp.sum(A * v, axis=1)
    return read.reshape(*read.shape[:2], -1) @ p.output[layer]


def _feed(p: Parameters, layer: int, X: Float[Array, "B rows D"]) -> Float[Array, "B rows D"]:
    assert p.up is not None
    assert p.up_bias is not None
    assert p.down is not None
    assert p.down_bias is not None
    hidden = jax.nn.relu(X @ p.up[layer] + p.up_bias[layer])
    return hidden @ p.down[layer] + p.down_bias[layer]


def _normalize(X: Float[Array, "... D"], epsilon: float) -> tuple[Array, Array]:
    """σ² and the normalised vectors; zero where σ² = 0 and ε = 0."""
    mean = jnp.mean(X, axis=-1, keepdims=True)
    centered = X - mean
    variance = jnp.mean(centered**2, axis=-1, keepdims=True)
    if epsilon == 0:
        constant = variance <= (8 * jnp.finfo(X.dtype).eps * mean) ** 2
        variance = jnp.where(constant, 0, variance)
        scale = jnp.where(constant, 0, jax.lax.rsqrt(jnp.where(constant, 1, variance)))
    else:
        scale = jax.lax.rsqrt(variance + epsilon)
    return variance[..., 0], centered * scale


def bits_of(index: Int[Array, " B"] | UInt32[Array, " B"], length: int) -> Bool[Array, "B N"]:
    """The strings that stand at some places of a truth table; `functions` says in which order."""
    return (index[:, None] >> jnp.arange(length - 1, -1, -1).astype(index.dtype)) & 1 != 0


def every_string(length: int) -> Bool[Array, "2^N N"]:
    """All strings, in the order of truth tables."""
    return bits_of(jnp.arange(1 << length, dtype=jnp.uint32), length)


def signs_of(function: Function) -> Int[Array, " 2^N"]:
    """1 where a function is one and −1 where it is zero, in the order of truth tables."""
    return jnp.where(function(every_string(function.length)), 1, -1)


def check_length(architecture: Architecture, function: Function) -> None:
    """Refuse a function of strings of another length than the recogniser reads."""
    if function.length != architecture.length:
        raise ValueError(
            f"Argument `function` must be one of {architecture.length} bits, but has "
            f"{function.length}."
        )


def truth_table(architecture: Architecture, parameters: Parameters, memory: int = 2**24) -> Tables:
    """What each model computes on all 2^N strings: packed truth tables and smallest margins.

    Strings are streamed in blocks, models in groups, so that intermediate values stay within about
    `memory` bytes (one model on 32 strings at least); what fits into the cache is fastest. Raises
    `ValueError` above N = 24.
    """
    checked(architecture.length)
    if parameters.bias.ndim == 0:
        alone = truth_table(architecture, jax.tree.map(lambda x: x[None], parameters), memory)
        return Tables(alone.words[0], alone.margin[0])
    models = len(parameters.bias)
    group, block = _sizes(architecture, models, parameters.bias.dtype.itemsize, memory)
    parts = []
    for start in range(0, models, group):
        # The last group is filled up with its last model: one program for all groups.
        chosen = np.minimum(np.arange(start, start + group), models - 1)
        parts.append(
            _tables(architecture, block, jax.tree.map(lambda x, c=chosen: x[c], parameters))
        )
    words, least = (np.concatenate(part)[:models] for part in zip(*parts, strict=True))
    return Tables(as_words(words), least)


def _sizes(architecture: Architecture, models: int, itemsize: int, memory: int) -> tuple[int, int]:
    """Models at once and strings at once; a block is a power of two, and all strings at most."""
    a, places = architecture, architecture.length + 1
    values = places * (6 * a.width + (a.feedforward or 0) + 2 * a.heads * places)
    room = max(32, memory // (itemsize * values))
    group = min(models, max(1, room // 64))
    return group, min(1 << a.length, 1 << ((room // group).bit_length() - 1))


@partial(jax.jit, static_argnums=(0, 1))
def _tables(
    architecture: Architecture, block: int, parameters: Parameters
) -> tuple[UInt8[Array, "M K"], Float[Array, " M"]]:
    """Packed in bytes, the first bit the least significant; and min |logit|."""
    starts = jnp.arange(0, 1 << architecture.length, block, dtype=jnp.uint32)
    run = jax.vmap(lambda p, bits: margins(architecture, p, bits), in_axes=(0, None))

    def part(start: Array) -> tuple[Array, Array]:
        index = start + jnp.arange(block, dtype=jnp.uint32)
        logits = run(parameters, bits_of(index, architecture.length))
        return jnp.packbits(logits > 0, axis=-1, bitorder="little"), jnp.min(jnp.abs(logits), -1)

    octets, least = jax.lax.map(part, starts)
    return jnp.moveaxis(octets, 0, 1).reshape(len(parameters.bias), -1), jnp.min(least, axis=0)
