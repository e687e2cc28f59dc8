"""Theorems as numbers: what is predicted beside what is measured.

Every function measures one statement on the (α, β, γ, δ) submanifold and returns a `Table` with a
verdict. Run under x64: gradients near zero are small differences.

With causal attention, the place after the query's token in block s holds 1/(2s) of that token, on
average H_N/2N with H_N = 1 + 1/2 + … + 1/N. This factor is in every gradient of the induction head
near zero, and in the emergence times that follow from them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from math import gcd, pi
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from imir.canonical import ALPHA, BETA, DELTA, GAMMA, canonical
from imir.flow import Flow, gradient_flow
from imir.population import (
    Loss,
    Population,
    exact,
    fixed_sample,
    mean_loss,
    view,
    with_odds,
)
from imir.prompts import Prompts
from imir.scores import Probes
from imir.solution import Solution
from imir.tasks.outcomes import Odds, odds
from imir.tasks.task import Task

# α, β, γ of gradients "near zero": at zero itself those of α and β vanish.
NEAR_ZERO = 1e-3
# δ beyond which p(associate) is one to rounding, and steps of bisection from there to rounding.
MOST_DELTA, BISECTIONS = 64.0, 60
LARGE = 10**6
# Random sets of places behind each mean, and turns of each.
SETS, TURNS = 16, 32
# Level at which a coordinate counts as emerged.
LEVEL = 0.5


@dataclass(frozen=True)
class Table:
    """Predictions beside measurements, and whether they agree by the `criterion`.

    `columns` name quantities with their units in parentheses; without, they are pure numbers.
    NaN stands where a row has no such number.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]
    criterion: str
    passed: bool

    def column(self, name: str) -> Float[np.ndarray, " R"]:
        """All values of one column."""
        return np.array([row[self.columns.index(name)] for row in self.rows], float)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; NaN becomes None."""
        rows = [[None if np.isnan(x) else x for x in row] for row in self.rows]
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": rows,
            "criterion": self.criterion,
            "passed": self.passed,
        }

    def __str__(self) -> str:
        cells = [self.columns, *([_shown(x) for x in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in cells]
        verdict = f"{'passed' if self.passed else 'FAILED'}: {self.criterion}"
        return "\n".join([self.title, *lines, verdict])


def _shown(x: float) -> str:
    return "" if np.isnan(x) else f"{x:.6g}"


def suppression(
    vocabularies: Sequence[int] = (256, 4096, 65536, LARGE),
    rare_fractions: Sequence[float] = (0.0, 0.2, 0.5),
    variabilities: Sequence[float] = (0.0, 0.36, 0.9),
    blocks: int = 16,
) -> Table:
    """Theorem 2 (arXiv 2607.11875): memorisation suppresses the gradient of the induction head.

        ∂L/∂φ (δ calibrated) / ∂L/∂φ (δ = 0)  →  f_r + (1 − f_r) f_v     for φ = α, β, γ

    as the vocabulary V grows. δ is calibrated where its own gradient vanishes, α, β, γ are near
    zero. V counts all tokens, half of them rare; associative recall, exact expectation.
    """
    statistics = list(product(rare_fractions, variabilities))
    rows = [
        (V, f_r, f_v, f_r + (1 - f_r) * f_v, *map(float, ratios))
        for V in _growing("vocabularies", vocabularies)
        for (f_r, f_v), ratios in zip(statistics, _suppressions(V, statistics, blocks), strict=True)
    ]
    off = np.abs(np.array(rows)[:, 4:] - np.array(rows)[:, 3:4]).reshape(len(vocabularies), -1)
    worst = off.max(axis=1)
    return Table(
        f"Theorem 2: gradient with δ calibrated / with δ = 0 (N = {blocks})",
        ("V", "f_r", "f_v", "predicted", ALPHA, BETA, GAMMA),
        tuple(rows),
        "the largest deviation falls from each V to the next and ends below 1e-3 "
        f"(it is {', '.join(f'{w:.2g}' for w in worst)})",
        bool(np.all(np.diff(worst) < 0) and worst[-1] < 1e-3),
    )


def _growing(name: str, values: Sequence[int]) -> Sequence[int]:
    """Refuse what is empty, not positive, or does not grow."""
    if not values or values[0] < 1 or any(b <= a for a, b in pairwise(values)):
        raise ValueError(
            f"Argument `{name}` must be growing positive numbers, but is {tuple(values)}."
        )
    return values


def _suppressions(
    V: int, statistics: Sequence[tuple[float, float]], blocks: int
) -> Float[Array, "S 3"]:
    """One program for all (f_r, f_v): only the prompts' weights differ."""
    shape = Task("recall", blocks, 1, 1.0, 0.5, 0.5, vocabulary=V // 2, rare_vocabulary=V - V // 2)
    tasks = [replace(shape, rare_fraction=f_r, variability=f_v) for f_r, f_v in statistics]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *(odds(task, shape) for task in tasks))
    return _suppression(exact(canonical(shape), shape), stacked)


@eqx.filter_jit
def _suppression(population: Population, many: Odds) -> Float[Array, "S 3"]:
    tie = population.tie
    free = jnp.array([name != DELTA for name in tie.names])

    def ratios(odds: Odds) -> Float[Array, " 3"]:
        seen = with_odds(population, odds).at()

        def slopes(delta) -> Float[Array, " 4"]:
            here = jnp.where(free, NEAR_ZERO, delta)
            return jax.grad(lambda y: mean_loss(tie, y, seen, "cross_entropy"))(here)

        calibrated = _root(lambda delta: slopes(delta)[tie.names.index(DELTA)])
        return (slopes(calibrated) / slopes(0.0))[: len(tie.names) - 1]

    return jax.lax.map(ratios, many)


def _root(slope: Callable) -> Float[Array, ""]:
    """Where a growing function of δ turns positive; the upper end where it never does."""

    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        up = slope(middle) > 0
        return jnp.where(up, low, middle), jnp.where(up, middle, high)

    ends = jnp.zeros(()), jnp.full((), MOST_DELTA)
    return jax.lax.fori_loop(0, BISECTIONS, halve, ends)[1]


def burstiness_gradient(
    burstiness: Sequence[int] = (1, 2, 4, 8, 16),
    sizes: Sequence[tuple[int, int]] = ((128, 1024), (128, LARGE), (512, LARGE)),
    seed: int = 0,
) -> Table:
    """Theorem 3 (arXiv 2607.11875): the gradient of the induction head grows with burstiness b.

        ∂L/∂φ (b) / ∂L/∂φ (1)  →  b      for φ = α, β       as N/b grows
                               →  (b − n/V) / (1 − n/V)     for φ = γ,  n = 2N + 1 tokens

    so γ's is proportional to b only for V ≫ n. Near zero, rare tokens only, cross-entropy, for each
    (N, V) of `sizes`. b = 1 is exact; otherwise a mean over random prompts, with the standard error
    (se) of the ratio.
    """
    counts, random = _growing("burstiness", burstiness), np.random.default_rng(seed)
    rows = [row for N, V in sizes for row in _gradient_rows(N, V, counts, random)]
    table = np.array(rows)
    N, b, ratio, error = table[:, :1], table[:, 2:3], table[:, [5, 7]], table[:, [6, 8]]
    near = np.abs(ratio - b) <= 2 * b**2 / N + 3 * error
    gamma = np.abs(table[:, 4] - table[:, 3]) <= 1e-3 * table[:, 3]
    return Table(
        "Theorem 3: gradient / gradient at b = 1",
        ("N", "V", "b", "predicted gamma", GAMMA, ALPHA, "se alpha", BETA, "se beta"),
        tuple(rows),
        "α and β are b to a relative 2b/N and three standard errors, γ is as predicted to 0.1 %",
        bool(near.all() and gamma.all()),
    )


def _gradient_rows(
    N: int, V: int, burstiness: Sequence[int], random: np.random.Generator
) -> list[tuple[float, ...]]:
    task = Task("recall", N, rare_fraction=1.0, rare_vocabulary=V)
    # All turns of one block are the exact expectation.
    every = (_turned(N, np.array([start])) for start in range(N // gcd(N, TURNS)))
    unit = np.mean([_gradient(task, prompts) for prompts in every], axis=0)
    rows = []
    for b in burstiness:
        drawn = unit[None]
        if b > 1:
            sets = (random.choice(N, b, replace=False) for _ in range(SETS))
            drawn = np.array([_gradient(task, _turned(N, places)) for places in sets])
        alpha, beta, gamma = drawn.mean(axis=0) / unit
        error = drawn.std(axis=0) / np.sqrt(max(1, len(drawn) - 1)) / np.abs(unit)
        share = task.length / V
        predicted = (b - share) / (1 - share)
        rows.append((N, V, b, predicted, gamma, alpha, error[0], beta, error[1]))
    return [tuple(map(float, row)) for row in rows]


def _turned(N: int, places: Int[np.ndarray, " b"]) -> Prompts:
    """Relevant blocks `0 1` in these places, turned around the prompt in equal steps.

    Each block stands nearly everywhere equally often, which takes most of the noise out of a mean.
    """
    turns = gcd(N, TURNS)
    steps = np.arange(turns)[:, None]
    blocks = np.broadcast_to(np.arange(2, 2 * N + 2).reshape(N, 2), (turns, N, 2)).copy()
    blocks[steps, (steps * (N // turns) + places) % N] = [0, 1]
    tokens = np.pad(blocks.reshape(turns, 2 * N), ((0, 0), (0, 1)))
    block, offset = (np.broadcast_to(x, tokens.shape) for x in divmod(np.arange(2 * N + 1), 2))
    shared = np.ones(turns, int), np.full(turns, 1 / turns)
    return Prompts(*map(jnp.asarray, (tokens, block, offset, *shared)))


@partial(jax.jit, static_argnames="task")
def _gradient(task: Task, prompts: Prompts) -> Float[Array, " 3"]:
    """∂L/∂(α, β, γ) near zero; the burstiness is that of the prompts."""
    tie = canonical(task)
    seen = view(tie, task, prompts)
    here = jnp.full(len(tie.names), NEAR_ZERO)
    return jax.grad(lambda y: mean_loss(tie, y, seen, "cross_entropy"))(here)


def emergence_scaling(
    blocks: Sequence[int] = (4, 8, 16, 32, 64, 128, 256), loss: Loss = "squared_error"
) -> Table:
    """The emergence time of the induction head against N (arXiv 2511.01033: Θ(N²)).

    From zero with the identity as metric, b = 1, rare tokens, in gradient-flow time. Squared error
    stops γ at 1; then β' = κ e^α and α' = κ β e^α with κ = H_N/4N² reach infinity at

        t = √(π/2) / κ = 4 √(π/2) N² / H_N            (squared error)
        t = 4 (π/2)^¼ N^(3/2) / √H_N                  (cross-entropy: γ = t/2N goes on growing)

    to leading order: Θ(N²) but for the logarithm that causal attention brings. Columns: predicted
    and measured time of ICL, the local exponents of both, and when γ, β, α each pass 1/2.
    """
    sizes = _growing("blocks", blocks)
    predicted = np.array([_emergence(N, loss) for N in sizes])
    runs = [_run(_rare(N), loss, 10 * t) for N, t in zip(sizes, predicted, strict=True)]
    measured = np.array([_time_of(run) for run in runs])
    law, slope = _exponents(sizes, predicted), _exponents(sizes, measured)
    passes = np.array([_passes(run) for run in runs])
    ordered = bool(np.all(np.diff(passes, axis=1) > 0))
    gap = np.abs(slope - law)[1:]
    rows = np.column_stack([sizes, predicted, measured, law, slope, passes])
    return Table(
        f"Emergence time with {loss.replace('_', ' ')} from zero (gradient-flow time)",
        ("N", "predicted time", "time", "predicted exponent", "exponent", GAMMA, BETA, ALPHA),
        tuple(tuple(map(float, row)) for row in rows),
        "the exponent approaches the predicted one with every N, to 0.1 at the last; "
        "γ passes 1/2 before β, and β before α",
        ordered and bool(np.all(np.diff(gap) < 0) and gap.size and gap[-1] < 0.1),
    )


def _emergence(N: int, loss: Loss) -> float:
    kappa = sum(1 / s for s in range(1, N + 1)) / (4 * N**2)
    blowup = np.sqrt(pi / 2) / kappa
    return blowup if loss == "squared_error" else np.sqrt(4 * N * blowup)


def _exponents(sizes: Sequence[int], times: Float[np.ndarray, " R"]) -> Float[np.ndarray, " R"]:
    """d log t / d log N from one row to the next; the first has none."""
    return np.append(np.nan, np.diff(np.log(times)) / np.diff(np.log(sizes)))


def _rare(N: int) -> Population:
    task = Task("recall", N, rare_fraction=1.0, rare_vocabulary=LARGE)
    return exact(canonical(task), task)


def _run(population: Population, loss: Loss, until: float) -> Solution:
    """From zero until ICL emerges. All queries ask for the context: they are their own probes."""
    weight = population.at().weight
    nowhere = jnp.full(weight.shape, jnp.nan)
    asked = Probes(population.at(), weight, nowhere, jnp.ones(()), jnp.array(jnp.nan), (None, None))
    flow = Flow(loss, until=until, saves=200, stop="icl")
    return gradient_flow(population, 0.0, flow, probes=asked, metric=jnp.eye(3))


def _time_of(run: Solution) -> float:
    """When ICL emerged; NaN where it did not."""
    return np.nan if run.icl_time is None else run.icl_time


def _passes(run: Solution) -> list[float]:
    """When γ, β, α pass the level."""
    found = dict(zip(run.names, run.coordinates.T, strict=True))
    return [
        float(np.interp(LEVEL, found[name], run.times, right=np.nan))
        for name in (GAMMA, BETA, ALPHA)
    ]


def burstiness_speedup(
    burstiness: Sequence[int] = (1, 2, 4, 8),
    blocks: int = 64,
    samples: int = 256,
    repeats: int = 3,
    loss: Loss = "cross_entropy",
) -> Table:
    """How much earlier ICL emerges with burstiness b, at equal N (Theorem 3 of arXiv 2607.11875).

    Gradients b times as large from zero give, to leading order in b/N,

        t(1) / t(b) = b     (cross-entropy);     b²     (squared error, where γ stops at b, not 1).

    From zero with the identity as metric, rare tokens; the mean over `repeats` samples, with its
    standard error (se).
    """
    counts = _growing("burstiness", burstiness)
    times = np.array([_bursty_times(b, blocks, samples, repeats, loss) for b in counts])
    mean, error = times.mean(axis=1), times.std(axis=1, ddof=1) / np.sqrt(repeats)
    b = np.array(counts, float)
    predicted = (b / b[0]) ** (1 if loss == "cross_entropy" else 2)
    ratio = mean[0] / mean
    spread = ratio * np.hypot(error / mean, error[0] / mean[0]) * (b > b[0])
    rows = np.column_stack([b, mean, predicted, ratio, spread])
    return Table(
        f"Speed-up of emergence by burstiness with {loss.replace('_', ' ')} (N = {blocks})",
        ("b", "time (gradient flow)", "predicted speed-up", "speed-up", "se speed-up"),
        tuple(tuple(map(float, row)) for row in rows),
        "the speed-up is as predicted to a relative 2b/N and three standard errors",
        bool(np.all(np.abs(ratio - predicted) <= 2 * b / blocks * predicted + 3 * spread)),
    )


def _bursty_times(b: int, N: int, samples: int, repeats: int, loss: Loss) -> list[float]:
    """One program for all b: the prompts have equal lengths."""
    task = Task("recall", N, burstiness=b, rare_fraction=1.0, rare_vocabulary=LARGE)
    keys = jax.random.split(jax.random.key(0), repeats)
    drawn = (fixed_sample(canonical(task), task, samples, key) for key in keys)
    return [_time_of(_run(population, loss, 10 * _emergence(N, loss))) for population in drawn]


TABLES: dict[str, Callable[[], Table]] = {
    "suppression": suppression,
    "burstiness_gradient": burstiness_gradient,
    "emergence_squared_error": emergence_scaling,
    "emergence_cross_entropy": partial(emergence_scaling, loss="cross_entropy"),
    "burstiness_speedup": burstiness_speedup,
}
