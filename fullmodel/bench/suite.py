"""Which work is measured: sizes of the full model, of the vocabulary and of the context."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax

from fullmodel.bench.runs import Limits, Run, race
from fullmodel.bench.steps import Row, compare
from fullmodel.bench.timing import peak
from fullmodel.bench.training import Speed, setting_of, speed
from fullmodel.bench.work import (
    Work,
    canonical_exact,
    in_batches,
    in_context,
    in_pairs,
    whole_manifold,
)
from imir.flow import Optimizer

WHOLE, CANONICAL = "whole manifold", "canonical, exact"
PRECISIONS = ("float64", "float32")


@dataclass(frozen=True)
class Suite:
    """Blocks and vocabulary of each measurement, and how carefully it is timed.

    `widths` are compared on the whole manifold and on the canonical coordinates. `vocabularies` and
    `blocks` add the number of prompts, which a slow full model limits. `races` add a
    learning rate, which grows with the vocabulary (the directions' squared norms do), and the steps
    of the full run; the reduced one has `limit`. `training` has a width, blocks and prompts.
    """

    widths: tuple[tuple[int, int], ...] = ((3, 12), (7, 24), (15, 48), (32, 92))
    vocabularies: tuple[tuple[int, int, int], ...] = tuple((16, 10**k, 16) for k in range(2, 7))
    blocks: tuple[tuple[int, int, int], ...] = tuple((2**k, 256, 8) for k in range(3, 8))
    races: tuple[tuple[int, int, float, int], ...] = (
        (3, 12, 1.0, 1000), (7, 24, 1.0, 1000), (15, 48, 5.0, 1000), (32, 91, 25.0, 10)
    )  # fmt: skip
    training: tuple[int, int, int] = (256, 16, 128)
    prompts: int = 32
    repeats: int = 5
    least: float = 0.2
    peak: tuple[int, ...] = (512, 1024, 2048)
    batches: int = 1024
    limit: int = 1000


QUICK = Suite(
    ((3, 12),), (), (), ((3, 12, 1.0, 20),), (32, 3, 8), 8, 2, 0.01, (512,), 64, 40
)  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """Everything measured; `peaks` of both precisions in floating-point operations a second."""

    peaks: dict[str, float]
    steps: tuple[Row, ...]
    runs: tuple[Run, ...]
    training: Speed | None = None

    def shares(self, row: Row) -> dict[str, float]:
        """What each side of a row reaches of the machine's peak."""
        double = {"reduced": row.reduced, "full": row.full}
        found = {name: side.rate / self.peaks["float64"] for name, side in double.items() if side}
        if row.full_float32 is not None:
            found["full_float32"] = row.full_float32.rate / self.peaks["float32"]
        return found

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        rows = [
            {**asdict(row), "ratio": row.ratio, "shares": self.shares(row)} for row in self.steps
        ]
        runs = [asdict(run) for run in self.runs]
        training = self.training and asdict(self.training)
        return {"peaks": self.peaks, "steps": rows, "runs": runs, "training": training}


Bar = Callable[[list[Any]], Iterator[Any]]


def measure(suite: Suite, bar: Bar) -> Bench:
    """All measurements of a suite in one run, in float64 unless a field says otherwise."""
    calls: list[Callable[[], Any]] = [partial(_compare, suite, *case) for case in _cases(suite)]
    calls += [partial(_race, suite, *case) for case in suite.races]
    calls.append(partial(_training, suite))
    found, peaks = [], []
    for call in bar(calls):
        # A shared machine has better and worse minutes, so its peak is measured all along.
        peaks.append({kind: peak(kind, suite.peak, suite.least) for kind in PRECISIONS})
        found.append(call())
    best = {kind: max(x[kind] for x in peaks) for kind in PRECISIONS}
    rows = tuple(x for x in found if isinstance(x, Row))
    return Bench(best, rows, tuple(x for x in found if isinstance(x, Run)), found[-1])


def _compare(suite: Suite, name: str, make: Callable[[], Work]) -> Row:
    return compare(name, make(), suite.repeats, suite.least)


def _cases(suite: Suite) -> Iterator[tuple[str, Callable[[], Work]]]:
    widths = tuple((*sizes, suite.prompts) for sizes in suite.widths)
    for *sizes, prompts in (*widths, *suite.vocabularies, *suite.blocks):
        yield WHOLE, partial(_whole, *sizes, prompts)
    for sizes in suite.widths:
        yield CANONICAL, partial(_canonical, *sizes)


def _whole(blocks: int, vocabulary: int, prompts: int) -> Work:
    return whole_manifold(in_pairs(blocks, vocabulary), prompts)


def _canonical(blocks: int, vocabulary: int) -> Work:
    return canonical_exact(in_pairs(blocks, vocabulary))


def _race(suite: Suite, blocks: int, vocabulary: int, rate: float, full_steps: int) -> Run:
    work = in_batches(in_context(blocks, vocabulary), suite.prompts, suite.batches)
    return race(work, Optimizer("momentum", rate), Limits(suite.limit, full_steps))


def _training(suite: Suite) -> Speed:
    width, blocks, batch = suite.training
    with jax.enable_x64(False):
        return speed(setting_of(width, blocks=blocks, batch=batch), 20, suite.repeats)
