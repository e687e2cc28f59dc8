"""A gradient costs the same at any vocabulary: ratios within one run."""

import time

import jax
import jax.numpy as jnp
import pytest

from imir import Task, basis_of, fixed_sample, free
from imir.population import mean_loss

SIZES = (1_000, 1_000_000)


def gradient(vocabulary: int):
    """A jitted gradient of the whole manifold over 64 prompts, and its arguments."""
    task = Task("recall", blocks=16, rare_fraction=0.5, variability=0.2, vocabulary=vocabulary)
    tie = free(basis_of(task, layers=2, heads=1))
    population = fixed_sample(tie, task, 64, jax.random.key(0))
    start = 0.1 * jax.random.normal(jax.random.key(1), (len(tie.names),))
    function = jax.jit(jax.grad(lambda y, seen: mean_loss(tie, y, seen, "cross_entropy")))
    return function, (start, population.at())


@pytest.mark.benchmark(group="gradient of the whole manifold, 64 prompts of 33 tokens")
@pytest.mark.parametrize("vocabulary", SIZES)
def test_gradient(benchmark, vocabulary):
    with jax.enable_x64(True):
        function, arguments = gradient(vocabulary)
        jax.block_until_ready(function(*arguments))
        benchmark(lambda: jax.block_until_ready(function(*arguments)))


def test_gradients_cost_the_same_at_any_vocabulary():
    """Interleaved timings; the fastest of many repeats, within 10 %."""
    with jax.enable_x64(True):
        runs = [gradient(size) for size in SIZES]
        best = [jnp.inf] * len(runs)
        for _ in range(40):
            for i, (function, arguments) in enumerate(runs):
                began = time.perf_counter()
                jax.block_until_ready(function(*arguments))
                best[i] = min(best[i], time.perf_counter() - began)
    ratio = best[1] / best[0]
    print(f"10^6 against 10^3 tokens: {ratio:.3f}")
    assert abs(ratio - 1) < 0.1
