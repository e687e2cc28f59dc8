"""Blowup of layer norms, and how much one bit can matter (arXiv 2606.08768; Hahn & Rofin 2024).

A layer norm multiplies differences by up to z = 1/√(σ² + ε). Its blowup is the largest 1 + z over
places, τ; that of a model on a string is the product over all norms, β = ∏ τ. With ε > 0 and S
norms β ≤ (1 + 1/√ε)^S, and the influence of one bit on the logit, E|logit(x) − logit(x ⊕ i)|, is
O(1/N). At ε = 0 a variance may come as near to zero as it likes and neither is bounded; where it
is zero the norm gives zero, and its blowup is counted as infinite.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from fullmodel.boolean.recognizer import (
    Architecture,
    Initialization,
    Parameters,
    initial,
    margins,
    variances,
)


def blowups(
    architecture: Architecture, parameters: Parameters, bits: Bool[Array, "B N"]
) -> Float[Array, "B S"]:
    """τ of each layer norm on each string: the largest 1 + 1/√(σ² + ε) over places; pure."""
    found = jnp.min(variances(architecture, parameters, bits), axis=-1)
    return 1 + 1 / jnp.sqrt(found + architecture.epsilon)


def blowup_bound(architecture: Architecture) -> float:
    """(1 + 1/√ε)^S for S layer norms; infinite at ε = 0."""
    if architecture.epsilon == 0:
        return np.inf if architecture.norms else 1.0
    return (1 + architecture.epsilon**-0.5) ** len(architecture.norms)


@dataclass(frozen=True)
class Influences:
    """What was measured on `M` random models of one length, on `B` strings each."""

    architecture: Architecture
    influence: Float[np.ndarray, " M"]
    """E|logit(x) − logit(x ⊕ i)| over strings and over bits i."""
    bound: Float[np.ndarray, " M"]
    """What it cannot exceed for any bit and string; see `influence_bound`."""
    largest: Float[np.ndarray, " M"]
    """The largest difference seen."""
    blowup: Float[np.ndarray, "M B"]
    """β."""


def measure(
    architecture: Architecture,
    initialization: Initialization,
    models: int,
    strings: int,
    key: Key[Array, ""],
) -> Influences:
    """Influences and blowups of random models, on uniform strings with one uniform bit flipped.

    Raises `ValueError` for less than two models or one string.
    """
    if models < 2 or strings < 1:
        raise ValueError(
            "Arguments `models` and `strings` must be at least 2 and 1, but are "
            f"{models} and {strings}."
        )
    drawn, differences, blowup = jax.device_get(
        _measured(architecture, initialization, models, strings, key)
    )
    each = [jax.tree.map(lambda x, m=m: x[m], drawn) for m in range(models)]
    bound = np.array([influence_bound(architecture, p) for p in each])
    return Influences(architecture, np.mean(differences, 1), bound, np.max(differences, 1), blowup)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _measured(
    architecture: Architecture, initialization: Initialization, models: int, strings: int, key
) -> tuple[Parameters, Float[Array, "M B"], Float[Array, "M B"]]:
    N = architecture.length

    def one(key: Key[Array, ""]):
        drawn, strung, flipped = jax.random.split(key, 3)
        parameters = initial(architecture, initialization, drawn)
        bits = jax.random.bernoulli(strung, shape=(strings, N))
        place = jax.random.randint(flipped, (strings, 1), 0, N)
        other = bits ^ (jnp.arange(N) == place)
        logit = partial(margins, architecture, parameters)
        beta = jnp.prod(blowups(architecture, parameters, bits), axis=-1)
        return parameters, jnp.abs(logit(bits) - logit(other)), beta

    return jax.lax.map(one, jax.random.split(key, models))


def influence_bound(architecture: Architecture, parameters: Parameters) -> float:
    """A bound on |logit(x) − logit(x ⊕ i)| for all strings and bits; it falls as 1/N.

    Along the layers it follows d, the largest change at the flipped place, and e, at other places.
    With |vectors| ≤ R, operator norms, scores at most A = R² Σ_h |Q_h K_hᵀ| / √(D/H) and so weights
    at most w = exp(2A) / (N+1), a head changes by at most
    |V_h O_h| (m + 2 R² c (δ + m)), m = w (d + N e), c = |Q_h K_hᵀ| / √(D/H), δ the place's own
    change; the feed-forward layer and the norm multiply by (1 + |U| |W|) / √ε. Exponential in A, so
    that the number is large: it is the dependence on N that it proves. Infinite where there is no
    bound of this kind (ε = 0), or none is derived here (other norms than post).
    """
    a, p, norm = architecture, jax.tree.map(np.asarray, parameters), _norm
    if a.norm != "post" or a.epsilon == 0:
        return np.inf
    places = 0.0 if p.positions is None else np.max(np.linalg.norm(p.positions, axis=1))
    places = np.sqrt(a.width / 2) if p.positions is None else places
    R = float(np.max(np.linalg.norm(p.tokens, axis=1)) + places)
    d, e = float(np.linalg.norm(p.tokens[0] - p.tokens[1])), 0.0
    with np.errstate(over="ignore"):
        for layer in range(a.layers):
            d, e = (x + _attention_change(a, p, layer, R, x, (d, e)) for x in (d, e))
            if a.feedforward is not None:
                d, e = (x * (1 + norm(p.up[layer]) * norm(p.down[layer])) for x in (d, e))
            d, e, R = d / np.sqrt(a.epsilon), e / np.sqrt(a.epsilon), float(np.sqrt(a.width))
        return float(e * np.linalg.norm(p.readout))


def _attention_change(a: Architecture, p, layer: int, R: float, own: float, changes) -> float:
    heads, size, N = a.heads, a.width // a.heads, a.length
    total = 0.0
    for h in range(heads):
        columns = slice(h * size, (h + 1) * size)
        c = _norm(p.query[layer][:, columns] @ p.key[layer][:, columns].T) / np.sqrt(size)
        w = min(1.0, np.exp(2 * c * R**2) / (N + 1))
        moved = w * (changes[0] + N * changes[1])
        value = _norm(p.value[layer][:, columns] @ p.output[layer][columns])
        total += value * (moved + 2 * R**2 * c * (own + moved))
    return total


def _norm(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix, 2))


def exponent(lengths, influences) -> tuple[float, float]:
    """Slope of log influence over log N, and its standard error from the scatter of models.

    `influences` has one row of models for each length; the fit weighs lengths equally.
    """
    x = np.log(lengths)
    x = x - x.mean()
    means = np.mean(influences, axis=1)
    errors = np.std(influences, axis=1, ddof=1) / np.sqrt(np.shape(influences)[1]) / means
    weights = x / np.sum(x**2)
    return float(weights @ np.log(means)), float(np.sqrt(np.sum((weights * errors) ** 2)))


def packing_bound(lipschitz: float, diameter: float, margin: float, parameters: int) -> float:
    """log₁₀ of (1 + C · diam(Θ) / ξ)^M, the most functions recognisable with margin ξ.

    C is the Lipschitz constant of the logit in the M parameters, in the norm of the diameter.
    Raises `ValueError` for a margin that is not positive.
    """
    if not margin > 0:
        raise ValueError(f"Argument `margin` must be positive, but is {margin}.")
    return parameters * float(np.log10(1 + lipschitz * diameter / margin))
