"""How a full model is trained: optimiser, schedule, batches and numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import jax
import optax

from fullmodel.architecture import wrong
from imir.flow import Optimizer
from imir.population import Loss

Name = Literal["sgd", "momentum", "adam", "adamw", "muon"]


@dataclass(frozen=True)
class Recipe:
    """A training run; `ValueError` for numbers that make none.

    Steps of SGD with rate η are gradient-flow time η; with momentum μ they come to η/(1 − μ).
    """

    optimizer: Name = "adamw"
    """sgd, momentum, adam (weight decay in the gradient), adamw (apart from it), or muon."""
    learning_rate: float = 1e-3
    """η at its highest."""
    steps: int = 2000
    """Number of steps."""
    batch: int = 128
    """Fresh prompts for each step."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Of the rate, after a linear warm-up."""
    warmup: int = 0
    """Steps of the warm-up."""
    weight_decay: float = 0.0
    """λ."""
    momentum: float = 0.9
    """μ of momentum and muon, β₁ of Adam."""
    epsilon: float = 1e-8
    """ε of Adam."""
    loss: Loss = "cross_entropy"
    """What is minimised."""
    products: Literal["bfloat16"] | None = None
    """Numbers in matrix products; sums are in the precision of the weights."""

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(Name):
            known = ", ".join(get_args(Name))
            raise wrong("optimizer", f"one of {known}", self.optimizer)
        for name, least in (("steps", 1), ("batch", 1), ("warmup", 0), ("weight_decay", 0)):
            if not getattr(self, name) >= least:
                raise wrong(name, f"at least {least}", getattr(self, name))
        if not 0 < self.learning_rate < float("inf"):
            raise wrong("learning_rate", "positive", self.learning_rate)
        if self.warmup >= self.steps:
            raise wrong("warmup", f"less than the {self.steps} steps", self.warmup)

    def rate(self) -> Callable | float:
        """The learning rate of each step."""
        if self.schedule == "constant" and not self.warmup:
            return self.learning_rate
        if self.schedule == "constant":
            return optax.linear_schedule(0.0, self.learning_rate, self.warmup)
        return optax.warmup_cosine_decay_schedule(
            0.0 if self.warmup else self.learning_rate, self.learning_rate, self.warmup, self.steps
        )

    def optax(self) -> optax.GradientTransformation:
        """The optimiser as gradients see it."""
        rate, decay = self.rate(), self.weight_decay
        if self.optimizer == "adamw":
            return optax.adamw(rate, self.momentum, eps=self.epsilon, weight_decay=decay)
        if self.optimizer == "muon":
            return optax.contrib.muon(
                rate,
                beta=self.momentum,
                weight_decay=decay,
                muon_weight_dimension_numbers=_matrices,
            )
        base = {
            "sgd": lambda: optax.sgd(rate),
            "momentum": lambda: optax.sgd(rate, self.momentum),
            "adam": lambda: optax.adam(rate, self.momentum, eps=self.epsilon),
        }
        return optax.chain(optax.add_decayed_weights(decay), base[self.optimizer]())

    def reduced(self) -> Optimizer | None:
        """The same steps in coordinates: `None` where they have none, or the rate is not constant.

        Coordinates follow SGD and momentum in any orthonormal frame, Adam in the one-hot one.
        """
        decayed = self.optimizer == "adam" and self.weight_decay > 0
        if self.optimizer == "muon" or decayed or callable(self.rate()):
            return None
        name = "adam" if self.optimizer in ("adam", "adamw") else self.optimizer
        return Optimizer(
            name, self.learning_rate, self.momentum, self.weight_decay, epsilon=self.epsilon
        )


def _matrices(parameters):
    """Muon turns the last two axes of key-query, output-value and hidden matrices, and of R."""

    def of(x):
        if x.ndim < 2:
            return None
        return optax.contrib.MuonDimensionNumbers(x.ndim - 2, x.ndim - 1)

    return jax.tree.map(of, parameters)
