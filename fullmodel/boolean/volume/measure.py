"""Measuring a volume piece by piece, so that what was found is never lost."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import jax
from jaxtyping import Array, Key

from fullmodel.boolean.volume.estimate import Count, Repeat, Volume, from_count, from_repeats
from fullmodel.boolean.volume.plain import hits
from fullmodel.boolean.volume.space import Space
from fullmodel.boolean.volume.splitting import Splitting, descend

# Hits from which plain Monte Carlo is good enough: an error of a tenth.
ENOUGH = 100


@dataclass(frozen=True)
class Budget:
    """What may be spent on one volume.

    auto: plain Monte Carlo, and splitting where that has fewer than 100 hits.
    """

    method: Literal["auto", "plain", "splitting"] = "auto"
    draws: int = 10_000
    """Points of plain Monte Carlo."""
    repeats: int = 8
    """Independent populations of splitting."""
    splitting: Splitting = field(default_factory=Splitting)

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ValueError(f"Argument `draws` must be at least 1, but is {self.draws}.")
        if self.repeats < 2:
            raise ValueError(f"Argument `repeats` must be at least 2, but is {self.repeats}.")


@dataclass(frozen=True)
class Record:
    """What was found so far."""

    count: Count | None = None
    repeats: tuple[Repeat, ...] = ()


def pieces(
    space: Space, budget: Budget, key: Key[Array, ""], record: Record = Record()
) -> Iterator[Record]:
    """The record after each piece of work that is still to be done."""
    if record.count is None and budget.method != "splitting":
        drawn = hits(space, budget.draws, budget.splitting.batch, jax.random.fold_in(key, 0))
        record = replace(record, count=Count(int(drawn), budget.draws))
        yield record
    while not _enough(record, budget):
        repeat = jax.random.fold_in(key, 1 + len(record.repeats))
        found = Repeat.of(descend(space, budget.splitting, repeat))
        record = replace(record, repeats=(*record.repeats, found))
        yield record


def _enough(record: Record, budget: Budget) -> bool:
    if budget.method == "plain" or _counted(record, budget):
        return True
    return len(record.repeats) >= budget.repeats


def _counted(record: Record, budget: Budget) -> bool:
    return budget.method == "auto" and record.count is not None and record.count.hits >= ENOUGH


def volume_of(record: Record, budget: Budget) -> Volume:
    """The estimate of a finished record."""
    if budget.method != "plain" and not _counted(record, budget):
        return from_repeats(record.repeats)
    assert record.count is not None
    return from_count(record.count)


def volume(space: Space, budget: Budget, key: Key[Array, ""]) -> Volume:
    """The probability of a set: log₁₀ with its standard error, or an upper bound.

    Results depend on the key and the budget alone.
    """
    record = Record()
    for record in pieces(space, budget, key):  # noqa: B007
        pass
    return volume_of(record, budget)
