"""The ε of Adam from which training stays on the manifold in floating-point numbers.

In the one-hot frame Adam is confined in exact arithmetic: entries of an orbital have equal
gradients, and those outside have none. Rounding leaves them about 1e-17 (float64), which Adam
divides by √v + ε. With a tiny ε that noise becomes steps of full length at once. With a middling
one it grows step by step: directions whose gradients vanish see plain steps of rate η/ε, which
diverge where that exceeds 2 over their curvature. Only beyond that does confinement hold.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from fullmodel.confinement import orbit_of, smallest, trajectories
from fullmodel.depart.rows import TASK
from imir.basis import basis_of
from imir.flow import Optimizer

Precision = Literal["float32", "float64"]
EPSILONS = (1e-16, 1e-12, 1e-8, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 1e-2)
# Off-manifold share of the way that still counts as rounding, in units of the machine's epsilon.
ROUNDING = 1e4


@dataclass(frozen=True)
class Confinement:
    """Off-manifold share of the way travelled for each ε, and the least ε from which it holds."""

    precision: Precision
    epsilons: tuple[float, ...]
    drift: tuple[float, ...]
    tolerance: float

    @property
    def holds_from(self) -> float | None:
        """`None` where it holds for no ε."""
        off = [e for e, d in zip(self.epsilons, self.drift, strict=True) if not d < self.tolerance]
        return min((e for e in self.epsilons if e > max(off, default=0.0)), default=None)


def adam(
    precision: Precision,
    epsilons: Sequence[float] = EPSILONS,
    steps: int = 200,
    bar: Callable[[Iterable[float]], Iterable[float]] = iter,
) -> Confinement:
    """Full-batch Adam from a point of the manifold, with each ε."""
    with jax.enable_x64(precision == "float64"):
        drift = tuple(_drift(epsilon, steps) for epsilon in bar(epsilons))
        tolerance = ROUNDING * float(jnp.finfo(jnp.result_type(float)).eps)
    return Confinement(precision, tuple(epsilons), drift, tolerance)


def _drift(epsilon: float, steps: int) -> float:
    task = smallest(TASK)
    basis = basis_of(task, 2, 1, "onehot")
    theta = 0.1 * jax.random.normal(jax.random.key(0), (len(basis.elements),))
    prompts, _ = orbit_of(task, jax.random.key(1))
    optimizer = Optimizer("adam", 1e-2, epsilon=epsilon)
    found = trajectories(basis, theta, prompts, optimizer, steps, every=steps // 10)
    return float(np.nan_to_num(found.drift, nan=np.inf))
