"""Does the initial point tell who will win? Three simple predictors, scored."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from imir.flow import inverse
from imir.lottery.influence import jacobians
from imir.lottery.race import NOBODY, Circuits, masks
from imir.population import Loss, Population

# A short linearised flow runs for so many times the inverse norm of the Jacobian.
HORIZON = 3.0


@dataclass(frozen=True)
class Prediction:
    """How often each predictor named the winner, of `count` initial points that had one.

    `commonest` is how often the commonest winner alone would be right.
    """

    accuracy: dict[str, float]
    commonest: float
    count: int

    def __str__(self) -> str:
        rows = [f"{name:<18} {share:.3f}" for name, share in self.accuracy.items()]
        return "\n".join([*rows, f"{'commonest winner':<18} {self.commonest:.3f} of {self.count}"])


def predict(
    population: Population,
    circuits: Circuits,
    starts: Float[np.ndarray, "N C"],
    won: Int[np.ndarray, " N"],
    loss: Loss = "cross_entropy",
) -> Prediction:
    """Score predictors of who `won` from the same initial points.

    - size: the circuit whose own initial coordinates have the largest sum;
    - gradient: whose coordinates' sum grows fastest at the start;
    - linearised flow: whose sum is largest after the short flow ẏ = v + J (y − y₀).

    Raises `ValueError` where no point has a winner.
    """
    known = won != NOBODY
    if not known.any():
        raise ValueError("Argument `won` must have winners, but nobody has won anywhere.")
    own = masks(population.tie, circuits)
    metric = inverse(population.tie.metric)
    v, J = jacobians(population, metric, jnp.asarray(starts[known]), loss)
    guesses = {
        "size": starts[known] @ own.T,
        "gradient": np.asarray(v) @ own.T,
        "linearised flow": np.asarray(_linearised(jnp.asarray(starts[known]), v, J)) @ own.T,
    }
    right = won[known]
    accuracy = {n: float(np.mean(np.argmax(g, axis=1) == right)) for n, g in guesses.items()}
    return Prediction(accuracy, float(np.bincount(right).max() / len(right)), len(right))


@eqx.filter_jit
def _linearised(starts: Float[Array, "N C"], v, J) -> Float[Array, "N C"]:
    """y₀ + ∫₀ᵗ exp(J s) v ds with t = HORIZON / ‖J‖, by the exponential of [[J, v], [0, 0]]."""

    def at(y, v, J):
        time = HORIZON / jnp.linalg.norm(J)
        block = jnp.zeros((len(y) + 1,) * 2, y.dtype).at[:-1].set(jnp.column_stack([J, v]))
        return y + jax.scipy.linalg.expm(time * block)[:-1, -1]

    return jax.lax.map(lambda x: at(*x), (starts, v, J))
