"""All checks of confinement for one task (arXiv 2607.11875, Theorem 1)."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import sqrt
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Key

from fullmodel.confinement.measures import (
    BATCH,
    MonteCarlo,
    agreement,
    gradient,
    monte_carlo,
    trajectories,
)
from fullmodel.confinement.orbits import orbit_of, smallest
from fullmodel.confinement.projection import residual
from imir.basis import Basis, Frame, basis_of
from imir.flow import Optimizer
from imir.prompts import ONCE, Prompts, uniform
from imir.tasks.outcomes import odds, sample
from imir.tasks.task import Task


class Check(NamedTuple):
    """One verdict: what was measured must be at most `bound`."""

    name: str
    measured: float
    bound: float

    @property
    def ok(self) -> bool:
        return self.measured <= self.bound

    def __str__(self) -> str:
        verdict = "ok    " if self.ok else "FAILED"
        return f"{verdict}  {self.name:<48} {self.measured:9.2e}  (at most {self.bound:.2e})"


@dataclass(frozen=True)
class Verification:
    """What `verify` measured; `steps` over the `prompts` of an orbit, the whole or a part of it."""

    task: str
    logit_error: float
    gradient_error: float
    orbit_residual: float
    orbit_residual_literal: float
    trajectory_error: float
    drift: float
    monte_carlo: MonteCarlo
    steps: int
    prompts: int
    whole: bool

    @property
    def checks(self) -> tuple[Check, ...]:
        """The literal set's residual is no check: where it is larger, its shifts do not suffice."""
        mc = self.monte_carlo
        slope = max(0.15, 3 * mc.slope_error)
        return (
            Check("logits, reduced against full", self.logit_error, 1e-12),
            Check("gradient, reduced against full", self.gradient_error, 1e-12),
            Check("gradient off the span, averaged over an orbit", self.orbit_residual, 1e-12),
            Check("coordinates, full run against reduced run", self.trajectory_error, 1e-8),
            Check("drift off the manifold per distance", self.drift, 1e-9),
            Check("sampled residual, |slope + 1/2|", abs(mc.slope + 0.5), slope),
            Check("sampled residual, floor", mc.floor, sqrt(3) * mc.floor_error),
        )

    @property
    def passed(self) -> bool:
        return all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Everything measured, ready for JSON."""
        return {**asdict(self), "passed": self.passed}

    def __str__(self) -> str:
        kind = "whole" if self.whole else "part of an"
        head = f"{self.task}: {self.steps} steps over {self.prompts} prompts ({kind} orbit)"
        literal = f"        {'with the literal shifts':<48} {self.orbit_residual_literal:9.2e}"
        lines = [str(check) for check in self.checks]
        return "\n".join([head, *lines[:3], literal, *lines[3:]])


# Random prompts for eight averages each over 64, 128, … of them, with six to three doublings.
SAMPLES = tuple(8 * BATCH * (2**k - 1) for k in (6, 5, 4, 3))
DEFAULTS = {
    "centered": Optimizer("momentum", learning_rate=0.05, weight_decay=1e-3),
    "onehot": Optimizer("adam", learning_rate=0.01),
}


def verify(
    task: Task | str,
    *,
    layers: int = 2,
    heads: int = 1,
    frame: Frame = "centered",
    optimizer: Optimizer | None = None,
    steps: int = 500,
    seed: int = 0,
    budget: float = 1.6e10,
    progress: Callable[[str], None] | None = None,
) -> Verification:
    """Check confinement for the smallest task of a template, in float64, at random coefficients.

    `optimizer` is momentum with weight decay in the centred frame and Adam in the one-hot frame by
    default. `budget` bounds the multiplications of a key-query product, n · d² for each prompt, by
    fewer `steps` and fewer random prompts. `progress` receives a line before each part.
    """
    small = smallest(task if isinstance(task, Task) else Task(task))
    basis = basis_of(small, layers, heads, frame)
    say = progress or (lambda line: None)
    with jax.enable_x64(True):
        return _verify(small, basis, optimizer or DEFAULTS[frame], steps, seed, budget, say)


def _verify(small: Task, basis: Basis, optimizer, steps, seed, budget, say) -> Verification:
    keys = jax.random.split(jax.random.key(seed), 4)
    literal = replace(basis, shifts="literal")
    theta = _random(basis, keys[0])
    say(f"{small}: logits and gradients, reduced against full")
    cost = _cost(basis, small.length)
    random = _sample(small, keys[1], next((n for n in SAMPLES if n * cost <= budget), SAMPLES[-1]))
    errors = agreement(basis, theta, uniform(jax.tree.map(lambda x: x[:32], random)))
    prompts, whole = orbit_of(small, keys[2])
    say(f"expected gradient over an orbit of {len(prompts)} prompts")
    expected = gradient(literal, _random(literal, keys[3]), prompts)
    steps, every = _affordable(steps, budget / (len(prompts) * cost))
    say(f"{steps} steps over these prompts, in full weights and in coordinates")
    path = trajectories(basis, theta, prompts, optimizer, steps, every=every)
    say(f"gradients over {len(random)} random prompts")
    return Verification(
        task=str(small),
        logit_error=errors.logits,
        gradient_error=errors.gradient,
        orbit_residual=float(residual(basis, expected)),
        orbit_residual_literal=float(residual(literal, expected)),
        trajectory_error=path.error,
        drift=path.drift,
        monte_carlo=monte_carlo(basis, theta, random),
        steps=steps,
        prompts=len(prompts),
        whole=whole,
    )


def _cost(basis: Basis, length: int) -> int:
    """n · d² multiplications of a key-query product of a prompt of n tokens."""
    return length * (basis.configuration.size * len(basis.paths(basis.layers + 1))) ** 2


def _affordable(wanted: int, most: float) -> tuple[int, int]:
    """How many steps, and how many of them lie between two of about ten records."""
    steps = max(1, min(wanted, int(most)))
    every = max(1, steps // 10)
    return steps // every * every, every


@partial(jax.jit, static_argnums=(0, 2), compiler_options=ONCE)
def _sample(task: Task, key: Key[Array, ""], size: int) -> Prompts:
    """Random prompts, a batch at a time."""
    keys = jax.random.split(key, size // BATCH)
    batches = jax.lax.map(lambda k: sample(task, k, BATCH, odds(task)), keys)
    return uniform(jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), batches))


def _random(basis: Basis, key: Key[Array, ""]) -> Float[Array, " E"]:
    """Coefficients at which softmaxes are neither flat nor saturated."""
    return 0.5 * jax.random.normal(key, (len(basis.elements),))
