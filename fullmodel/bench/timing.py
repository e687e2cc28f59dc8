"""Timings worth comparing: warmed up, interleaved, the fastest of several repeats."""

import time
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from fullmodel.bench.programs import Program


def seconds(call: Callable[[], object]) -> float:
    """Wall time of a call that waits for its result."""
    began = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - began


def per_step(programs: Mapping[str, Program], repeats: int, least: float) -> dict[str, float]:
    """Seconds of one gradient step of each program.

    Every timed call makes as many steps as take about `least` seconds.
    """
    steps = {name: _steps(program, least) for name, program in programs.items()}
    best = dict.fromkeys(programs, float("inf"))
    for _ in range(repeats):
        for name, p in programs.items():
            found = seconds(lambda p=p, n=steps[name]: p.run(p.start, n)) / steps[name]
            best[name] = min(best[name], found)
    return best


def _steps(program: Program, least: float) -> int:
    once = seconds(lambda: program.run(program.start, 1))
    if once > least:
        return 1
    many = seconds(lambda: program.run(program.start, 20)) / 20
    return max(1, int(least / many))


def peak(dtype: str, sizes: Sequence[int], least: float) -> float:
    """Floating-point operations in a second of a matrix product, of the size that does best."""
    return max(_rate(dtype, size, least) for size in sizes)


def _rate(dtype: str, size: int, least: float) -> float:
    x = jax.random.normal(jax.random.key(0), (size, size), jnp.dtype(dtype))
    product = jax.jit(jnp.matmul)
    seconds(lambda: product(x, x))
    count = max(1, int(least / seconds(lambda: product(x, x))))
    times = [seconds(lambda: [product(x, x) for _ in range(count)]) for _ in range(3)]
    return 2 * size**3 * count / min(times)
