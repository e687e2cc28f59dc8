"""The space of recognisers under an initialisation, and the set in it that computes a function."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fullmodel.boolean.functions import Function
from fullmodel.boolean.recognizer import (
    Architecture,
    Initialization,
    Parameters,
    check_length,
    every_string,
    margins,
    placed,
    signs_of,
    spread,
    unit_draw,
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

    def __call__(self, unit: Float[Array, " P"]) -> Float[Array, ""]:
        """Of all parameters in one row, in units of the spread of their law."""
        bits = every_string(self.architecture.length)
        logits = self.signs * margins(
            self.architecture, placed(self.architecture, self.spread, unit), bits
        )
        behind = jnp.maximum(self.margin - logits, 0)
        wrong = jnp.sum(logits <= self.margin)
        r = jnp.sum(behind) / (jnp.maximum(wrong, 1) * jnp.sqrt(jnp.mean(logits**2)) + 1e-30)
        return jnp.where(wrong == 0, 1.0, 1 - wrong - r / (1 + r))


def models(
    architecture: Architecture,
    initialization: Initialization,
    function: Function,
    margin: float = 0.0,
) -> Space:
    """Recognisers drawn by an initialisation, and among them those that compute the function.

    Points are all parameters in one row, in units of their `spread`. Raises `ValueError` for a
    margin below zero, and for a function of strings of another length.
    """
    if not margin >= 0:
        raise ValueError(f"Argument `margin` must not be negative, but is {margin}.")
    check_length(architecture, function)
    scale = jax.tree.map(jnp.asarray, spread(architecture, initialization))
    nearness = Nearness(architecture, scale, signs_of(function), jnp.asarray(margin, float))
    move = uniform_move if initialization.rule.endswith("uniform") else gaussian_move
    return Space(unit_draw(architecture, initialization), move, nearness)
