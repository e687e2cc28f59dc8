"""Precision as fixtures, and plain NumPy versions of the model to check against."""

import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from imir.basis import Basis, Path
from imir.prompts import Prompts
from imir.relations import Configuration, Relation, cycle
from imir.tasks.outcomes import Question, odds, sample
from imir.tasks.task import Task
from imir.ties import Tie

# Most tests spend far longer compiling than running, those that start processes too.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
UNOPTIMISED = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


@pytest.fixture
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture
def float32() -> Iterator[None]:
    with jax.enable_x64(False):
        yield


def once(function: Callable, *args: Any) -> Any:
    """Compile without optimising anything and run."""
    lowered = jax.jit(lambda *a: function(*a)).lower(*args)
    return lowered.compile(compiler_options=UNOPTIMISED)(*args)


@cache
def _sampler(task: Task, size: int, question: Question) -> Callable:
    lowered = sample.lower(task, jax.random.key(0), size, odds(task), question)
    return lowered.compile(compiler_options=UNOPTIMISED)


@cache
def draw(task: Task, size: int, question: Question = Question(), like: Task | None = None) -> Any:
    """A sample in NumPy arrays, drawn once and shared; with the probabilities of `like`."""
    drawn = _sampler(task, size, question)(jax.random.key(5), odds(like or task, task))
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


def plain_dense(config: Configuration) -> np.ndarray:
    """A 0/1 matrix for each orbital, from the copy and the node of each element."""
    places = [
        (i, copy, config.node(i, role))
        for i, r in enumerate(config.relations)
        for copy in range(r.copies)
        for role in range(r.motif.size)
    ]
    relation, copy, node = np.array(places).T
    same = (relation[:, None] == relation) & (copy[:, None] == copy)
    found = config.table[same.astype(int), node[:, None], node]
    return (found == np.arange(len(config.orbitals))[:, None, None]).astype(float)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def plain_logits(basis: Basis, coefficients: np.ndarray, prompts: Prompts) -> np.ndarray:
    """Logits of the whole vocabulary by explicit N × N selections, element by element.

    Reads scores Σ A_u S A_vᵀ and logits Σ S A_vᵀ off the definitions, without ties or candidates.
    """
    config, first = basis.configuration, basis.configuration.first(len(basis.classes))
    tokens, block, offset = map(np.asarray, (prompts.tokens, prompts.block, prompts.offset))
    parts = [tokens, first + block * basis.positions.motif.size + offset]
    used = [(e, t) for e, t in zip(basis.elements, coefficients, strict=True) if t != 0]
    orbitals = plain_dense(config)
    S = {e.selection: np.tensordot(basis.values[e.selection], orbitals, 1) for e, _ in used}
    kernel = {
        i: sum(s[x[:, :, None], y[:, None]] for x in parts for y in parts) for i, s in S.items()
    }
    n = tokens.shape[-1]
    A: dict[Path, np.ndarray] = {(): np.broadcast_to(np.eye(n), (len(tokens), n, n))}
    for layer in range(1, basis.layers + 1):
        new = {}
        for head in range(1, basis.heads + 1):
            score = np.zeros((len(tokens), n, n))
            for e, theta in used:
                if (e.layer, e.head) == (layer, head):
                    u, v = A[e.query_path], A[e.key_path]
                    score += theta * (u @ kernel[e.selection] @ v.swapaxes(-1, -2))
            attention = softmax(np.where(np.tri(n, dtype=bool), score, -np.inf))
            new |= {(*path, (layer, head)): attention @ below for path, below in A.items()}
        A |= new
    out = np.zeros((len(tokens), first))
    for e, theta in used:
        if e.head is None:
            for x in parts:
                out += theta * np.einsum(
                    "tpm,pm->pt", S[e.selection][:first, x], A[e.key_path][:, -1]
                )
    return out


def plain_losses(tie: Tie, coordinates: np.ndarray, prompts: Prompts) -> np.ndarray:
    """Cross-entropy of each prompt from the explicit logits."""
    out = plain_logits(tie.basis, tie.matrix @ coordinates, prompts)
    return -np.log(softmax(out)[np.arange(len(out)), np.asarray(prompts.target)])


def by_parts(tie: Tie, coordinates: np.ndarray, prompts: Prompts) -> np.ndarray:
    """Loss of each prompt, a few hundred at a time."""
    starts = range(0, len(prompts), 500)
    parts = [jax.tree.map(lambda x, i=i: x[i : i + 500], prompts) for i in starts]
    return np.concatenate([plain_losses(tie, coordinates, part) for part in parts])


def small_basis(layers: int = 2, heads: int = 1, **options: Any) -> Basis:
    """Three pairs of tokens and rings of five places in three slots, for blocks of two."""
    classes = options.pop("classes", (Relation("pairs", cycle(2), 3),))
    positions = options.pop("positions", Relation("position", cycle(5), 3))
    return Basis(classes, positions, options.pop("block_size", 2), layers, heads, **options)


def as_jax(prompts: Prompts) -> Prompts:
    return jax.tree.map(jnp.asarray, prompts)
