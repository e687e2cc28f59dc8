"""Precision as fixtures, and plain NumPy versions of the model to check against."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from imir.basis import Basis
from imir.prompts import Prompts
from imir.tasks.outcomes import Question, odds, sample
from imir.tasks.task import Task
from imir.ties import Tie

UNOPTIMISED = {"xla_backend_optimization_level": 0}


@pytest.fixture
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture
def float32() -> Iterator[None]:
    with jax.enable_x64(False):
        yield


def once(function: Callable, *args: Any) -> Any:
    """Compile without optimising and run: most tests spend far longer compiling than running."""
    return jax.jit(function).lower(*args).compile(compiler_options=UNOPTIMISED)(*args)


@cache
def draw(task: Task, size: int, seed: int = 0, question: Question = Question()) -> Prompts:
    """A sample in NumPy arrays, drawn once and shared between tests."""
    lowered = sample.lower(task, jax.random.key(seed), size, odds(task), question)
    drawn = lowered.compile(compiler_options=UNOPTIMISED)(jax.random.key(seed), odds(task))
    return jax.tree.map(np.asarray, drawn)


def close_to(values: np.ndarray, expected: float) -> bool:
    """Is the mean of independent values within four standard errors of what is expected?"""
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return bool(error > 0 and abs(np.mean(values) - expected) < 4 * error)


def uniform(counts: np.ndarray) -> bool:
    """Is Pearson's statistic within four standard deviations of its mean, were all cells equal?"""
    freedom = counts.size - 1
    statistic = np.sum((counts - counts.mean()) ** 2) / counts.mean()
    return bool(abs(statistic - freedom) < 4 * np.sqrt(2 * freedom))


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def plain_logits(basis: Basis, coefficients: np.ndarray, prompts: Prompts) -> np.ndarray:
    """Logits of the whole vocabulary by explicit N × N selections, element by element.

    Reads scores Σ A_u S A_vᵀ and logits Σ S A_vᵀ off the definitions, without ties or candidates.
    """
    S = basis.configuration.dense(basis.values)
    first = basis.configuration.first(len(basis.classes))
    place = first + np.asarray(prompts.block) * basis.positions.motif.size + prompts.offset
    parts = [np.asarray(prompts.tokens), np.asarray(place)]
    kernels = np.array([sum(s[x[:, :, None], y[:, None]] for x in parts for y in parts) for s in S])
    answers = np.array([sum(s[:first, x].swapaxes(0, 1) for x in parts) for s in S])
    n = prompts.tokens.shape[-1]
    A: dict = {(): np.broadcast_to(np.eye(n), kernels.shape[1:])}
    for layer in range(1, basis.layers + 1):
        new = {}
        for head in range(1, basis.heads + 1):
            score = np.zeros_like(kernels[0])
            for element, theta in zip(basis.elements, coefficients, strict=True):
                if (element.layer, element.head) == (layer, head):
                    u, v = A[element.query_path], A[element.key_path]
                    score += theta * (u @ kernels[element.selection] @ v.swapaxes(-1, -2))
            attention = softmax(np.where(np.tri(n, dtype=bool), score, -np.inf))
            new |= {(*path, (layer, head)): attention @ below for path, below in A.items()}
        A |= new
    return sum(
        theta * np.einsum("ptm,pm->pt", answers[e.selection], A[e.key_path][:, -1])
        for e, theta in zip(basis.elements, coefficients, strict=True)
        if e.head is None
    )


def plain_losses(tie: Tie, coordinates: np.ndarray, prompts: Prompts) -> np.ndarray:
    """Cross-entropy of each prompt from the explicit logits."""
    out = plain_logits(tie.basis, tie.matrix @ coordinates, prompts)
    return -np.log(softmax(out)[np.arange(len(out)), np.asarray(prompts.target)])


def small_basis(layers: int = 2, heads: int = 1, **options: Any) -> Basis:
    """Three pairs of tokens and rings of five places in three slots, for blocks of two."""
    from imir.relations import Relation, cycle

    classes = options.pop("classes", (Relation("pairs", cycle(2), 3),))
    positions = options.pop("positions", Relation("position", cycle(5), 3))
    return Basis(classes, positions, options.pop("block_size", 2), layers, heads, **options)


def as_jax(prompts: Prompts) -> Prompts:
    return jax.tree.map(jnp.asarray, prompts)
