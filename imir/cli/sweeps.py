"""What the commands that sweep over cells have in common."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from imir.population import Expectation


class SweepOptions(Protocol):
    """The options that every sweep has."""

    @property
    def start(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def expectation(self) -> Expectation: ...
    @property
    def samples(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def refine(self) -> int | None: ...


@contextmanager
def sweeping(options: SweepOptions, store: Path | None) -> Iterator[dict[str, Any]]:
    """Arguments of `phase_diagram`; an interruption says where the finished cells are."""
    try:
        yield {
            "start": options.start,
            "weight_decay": options.weight_decay,
            "kind": options.expectation,
            "samples": options.samples,
            "seed": options.seed,
            "store": store,
            "refine": options.refine,
            "progress": True,
        }
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; finished cells are in {store}, and the same command goes on."
        ) from None
