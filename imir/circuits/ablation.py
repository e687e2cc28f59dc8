"""Losses of a model some of whose directions are ablated, that is, have coordinate zero."""

from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from imir.population import Loss, Population, mean_loss

# Ablated models that are evaluated side by side.
SIDE_BY_SIDE = 8


@dataclass
class Effort:
    """How much was evaluated: expected losses, and gradients of one."""

    losses: int = 0
    gradients: int = 0

    @property
    def total(self) -> int:
        """In losses; a gradient costs about three."""
        return self.losses + 3 * self.gradients


@dataclass(frozen=True)
class Ablations:
    """A model's loss L(m ∘ φ) for masks m of its coordinates φ, and what asking for it has cost."""

    population: Population
    coordinates: Float[Array, " C"]
    loss: Loss = "cross_entropy"
    effort: Effort = field(default_factory=Effort)

    def losses(self, kept: Bool[np.ndarray, "M C"]) -> Float[np.ndarray, " M"]:
        """Expected loss with only the `kept` directions of each row."""
        self.effort.losses += len(kept)
        return losses(self.population, self.coordinates, kept, self.loss)

    def one(self, kept: Bool[np.ndarray, " C"]) -> float:
        return float(self.losses(kept[None])[0])

    def flipping_each(
        self, kept: Bool[np.ndarray, " C"], some: np.ndarray
    ) -> Float[np.ndarray, " M"]:
        """Losses where one direction more, each of `some`, is ablated, or is kept if it was not."""
        rows = np.repeat(kept[None], len(some), axis=0)
        rows[np.arange(len(some)), some] ^= True
        return self.losses(rows)

    def slopes(self, kept: Bool[np.ndarray, " C"]) -> Float[np.ndarray, " C"]:
        """−∂L/∂m: how the loss grows with the ablation of each direction, to first order."""
        self.effort.gradients += 1
        return -np.asarray(_slope(self.population, self.coordinates, jnp.asarray(kept), self.loss))


def losses(
    population: Population,
    coordinates: Float[Array, " C"],
    kept: Bool[np.ndarray, "M C"],
    loss: Loss = "cross_entropy",
) -> Float[np.ndarray, " M"]:
    """L(m ∘ φ) for each mask m. One program for up to C masks."""
    rows = max(len(coordinates), SIDE_BY_SIDE)
    room = -(-rows // SIDE_BY_SIDE) * SIDE_BY_SIDE
    parts = [kept[i : i + room] for i in range(0, len(kept), room)]
    found = [
        np.asarray(_losses(population, coordinates, *_filled(part, room), loss)) for part in parts
    ]
    return np.concatenate([x[: len(part)] for x, part in zip(found, parts, strict=True)])


def _filled(kept: Bool[np.ndarray, "M C"], room: int) -> tuple[Bool[Array, "R C"], Int[Array, ""]]:
    """The masks with room for more, and their number, an array so that one program serves all."""
    return jnp.asarray(np.pad(kept, ((0, room - len(kept)), (0, 0)))), jnp.asarray(len(kept))


@eqx.filter_jit
def _losses(population: Population, coordinates, kept, count, loss: Loss) -> Float[Array, " R"]:
    """The first `count` rows, a few side by side; the others stay zero."""
    tie, seen = population.tie, population.at()

    def some(i, found):
        rows = jax.lax.dynamic_slice_in_dim(kept, i * SIDE_BY_SIDE, SIDE_BY_SIDE)
        values = jax.vmap(lambda m: mean_loss(tie, m * coordinates, seen, loss))(rows)
        return jax.lax.dynamic_update_slice_in_dim(found, values, i * SIDE_BY_SIDE, 0)

    nothing = jnp.zeros(len(kept), coordinates.dtype)
    return jax.lax.fori_loop(0, -(-count // SIDE_BY_SIDE), some, nothing)


@eqx.filter_jit
def _slope(population: Population, coordinates, kept, loss: Loss) -> Float[Array, " C"]:
    tie, seen = population.tie, population.at()
    mask = kept.astype(coordinates.dtype)
    return jax.grad(lambda m: mean_loss(tie, m * coordinates, seen, loss))(mask)
