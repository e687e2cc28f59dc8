"""Command-line options that several commands share, and what they stand for."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from imir.basis import Basis, basis_of
from imir.canonical import canonical
from imir.flow import Flow
from imir.population import Expectation, Loss
from imir.tasks.task import Task
from imir.ties import REDUCTIONS, Tie


@dataclass(frozen=True)
class TaskOptions:
    """A task and its data statistics."""

    task: str = "recall"
    """recall, 2hop (any khop), 3gram (any kgram), inversion, retrieval, ioi, or a template such as
    "a b; b c | a -> c" (relevant blocks | query -> answer, decoys between them)."""
    blocks: int = 8
    """N, complete blocks in the context."""
    burstiness: int = 1
    """b, copies of each relevant block."""
    context_fraction: float = 1.0
    """Probability that the relevant blocks are in the context."""
    rare_fraction: float = 0.0
    """f_r, probability that a block's tokens are rare (without relations of their own)."""
    variability: float = 0.0
    """f_v = 1 − Σ p(y|x)² of a common token's label."""
    vocabulary: int | None = None
    """Common tokens; by default 256 for each letter of the template."""
    rare_vocabulary: int | None = None
    """Rare tokens; by default as many as common ones."""
    frequency_bins: tuple[str, ...] = ()
    """Several common classes as SHARE:TOKENS, for instance 0.7:64 0.3:448 (a Zipf law's bins)."""
    seed: int = 0
    """Seed of everything random."""
    out: Path | None = None
    """Folder for files; made if it does not exist."""
    json: bool = False
    """One JSON object on standard output, and nothing else there."""


@dataclass(frozen=True)
class ModelOptions(TaskOptions):
    """An architecture."""

    layers: int = 2
    """L, layers of attention."""
    heads: int = 1
    """H, heads in each layer."""
    frame: Literal["centered", "onehot"] = "centered"
    """How selections become matrices; the one-hot frame is exact for Adam too."""


@dataclass(frozen=True)
class RunOptions(ModelOptions):
    """A run in coordinates."""

    coordinates: Literal["auto", "canonical", "all", "one-step", "two-step"] = "auto"
    """canonical: α, β, γ, δ (two layers, one head); all: the whole manifold; one-step, two-step:
    only directions whose paths go through at most so many heads; auto: canonical where the
    architecture allows it, else all."""
    loss: Loss = "cross_entropy"
    """What is minimised."""
    until: float = 1e6
    """End, in gradient-flow time."""
    start: float = 1e-3
    """Initial value of α, β, γ, δ; scale of random initial values on the whole manifold."""
    weight_decay: float = 0.0
    """λ, weight decay."""
    expectation: Expectation = "auto"
    """exact: all prompts up to symmetry; sample: fixed prompts; auto: exact where feasible."""
    samples: int = 1024
    """Prompts in a sample."""
    rtol: float = 1e-6
    """Relative tolerance of the solver."""
    max_steps: int = 16384
    """Steps after which the solver gives up."""
    precision: Literal["float32", "float64"] = "float64"
    """Floating-point numbers."""


def task_of(options: TaskOptions) -> Task:
    """The task that the options describe."""
    bins = tuple(_bin(text) for text in options.frequency_bins)
    names = ("blocks", "burstiness", "context_fraction", "rare_fraction", "variability")
    names += ("vocabulary", "rare_vocabulary")
    statistics = {name: getattr(options, name) for name in names}
    return Task(options.task, frequency_bins=bins, **statistics)


def _bin(text: str) -> tuple[float, int]:
    share, _, size = text.partition(":")
    try:
        return float(share), int(size)
    except ValueError:
        raise ValueError(
            f"Argument `frequency_bins` must be SHARE:TOKENS pairs, but has {text!r}."
        ) from None


def tie_of(options: RunOptions, task: Task) -> Tie:
    """The coordinates that the options ask for."""
    two_layers = (options.layers, options.heads) == (2, 1)
    if options.coordinates == "canonical" and not two_layers:
        raise ValueError(
            "Argument `coordinates` must be all unless there are 2 layers of 1 head, but is "
            f"canonical with {options.layers} layers of {options.heads}."
        )
    if options.coordinates == "canonical" or (options.coordinates == "auto" and two_layers):
        return canonical(task)
    return directions_of(options, basis_of(task, options.layers, options.heads, options.frame))


def directions_of(options: RunOptions, basis: Basis) -> Tie:
    """Each direction of the basis, or of its reduction asked for, a coordinate of its own."""
    return REDUCTIONS[options.coordinates if options.coordinates in REDUCTIONS else "all"](basis)


def start_of_run(options: RunOptions, tie: Tie) -> jax.Array:
    """Equal initial values on the canonical submanifold, Gaussian ones for single directions."""
    if not np.isfinite(options.start):
        raise ValueError(f"Argument `start` must be finite, but is {options.start}.")
    if not set(tie.names) <= set(tie.basis.names):
        return jnp.full(len(tie.names), options.start)
    key = jax.random.fold_in(jax.random.key(options.seed), 1)
    return options.start * jax.random.normal(key, (len(tie.names),))


def flow_of(options: RunOptions, **changes) -> Flow:
    chosen = {"loss": options.loss, "until": options.until, "rtol": options.rtol}
    return Flow(max_steps=options.max_steps, **{**chosen, **changes})


@contextmanager
def precision(options: RunOptions) -> Iterator[None]:
    """The floating-point numbers asked for, as a context."""
    with jax.enable_x64(options.precision == "float64"):
        yield


def check_folder(out: Path | None) -> None:
    """Refuse a folder for files that cannot be made or written; makes nothing itself."""
    if out is None:
        return
    nearest = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        raise ValueError(
            f"Argument `out` must be a folder that can be written, but {str(nearest)!r} is not."
        )


def folder(out: Path) -> Path:
    """The folder for files, made where it does not exist."""
    out.mkdir(parents=True, exist_ok=True)
    return out
