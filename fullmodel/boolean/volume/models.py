"""The space of recognisers under an initialisation, and the set in it that computes a function."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fullmodel.boolean.functions import Function
from fullmodel.boolean.recognizer import (
    Architecture,
    Initialization,
    Parameters,
    bits_of,
    initial,
    margins,
    spread,
)
from fullmodel.boolean.volume.space import Space, gaussian_move, uniform_move


class Nearness(eqx.Module):
    """How near a model is to recognising a function; positive where it does.

    Below: −(wrong − 1 + r / (1 + r)) with the number of wrong strings and r, how far these are on
    the wrong side on average, in units of the root mean square of all logits. A string is wrong
    unless its logit is on the right side of zero by more than the margin ξ.
    """

    architecture: Architecture = eqx.field(static=True)
    spread: Parameters
    signs: Int[Array, " 2^N"]
    margin: Float[Array, ""]

    def __call__(self, unit: Parameters) -> Float[Array, ""]:
        """Of parameters in units of the spread of their law."""
        bits = every_string(self.architecture.length)
        logits = self.signs * margins(self.architecture, self.placed(unit), bits)
        behind = jnp.maximum(self.margin - logits, 0)
        wrong = jnp.sum(logits <= self.margin)
        r = jnp.sum(behind) / (jnp.maximum(wrong, 1) * jnp.sqrt(jnp.mean(logits**2)) + 1e-30)
        return jnp.where(wrong == 0, 1.0, 1 - wrong - r / (1 + r))

    def placed(self, unit: Parameters) -> Parameters:
        return jax.tree.map(jnp.multiply, self.spread, unit)


def every_string(length: int) -> Array:
    """All strings, in the order of truth tables."""
    return bits_of(jnp.arange(1 << length, dtype=jnp.uint32), length)


class _Draw(eqx.Module):
    architecture: Architecture = eqx.field(static=True)
    rule: Initialization = eqx.field(static=True)

    def __call__(self, key: Key[Array, ""]) -> Parameters:
        return initial(self.architecture, self.rule, key)


def models(
    architecture: Architecture,
    initialization: Initialization,
    function: Function,
    margin: float = 0.0,
) -> Space:
    """Recognisers drawn by an initialisation, and among them those that compute the function.

    Points are parameters in units of `spread`. Raises `ValueError` for a margin below zero, and for
    a function of strings of another length.
    """
    if not margin >= 0:
        raise ValueError(f"Argument `margin` must not be negative, but is {margin}.")
    if function.length != architecture.length:
        raise ValueError(
            f"Argument `function` must be one of {architecture.length} bits, but has "
            f"{function.length}."
        )
    uniform = initialization.rule.endswith("uniform")
    draw = _Draw(architecture, Initialization("uniform" if uniform else "gaussian"))
    signs = jnp.where(function(every_string(architecture.length)), 1, -1)
    scale = jax.tree.map(jnp.asarray, spread(architecture, initialization))
    nearness = Nearness(architecture, scale, signs, jnp.asarray(margin, float))
    return Space(draw, uniform_move if uniform else gaussian_move, nearness)
