"""Checkpoints of a training run (orbax), with what was measured up to each."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp

from fullmodel.confinement.departure import Row
from imir.phases.store import difference

KEPT = 2

State = TypeVar("State")


@dataclass(frozen=True)
class Saved:
    """The checkpoints of a run; without a folder nothing is kept."""

    manager: ocp.CheckpointManager | None = None

    @property
    def described(self) -> str:
        """What there is, in words."""
        step = self.manager and self.manager.latest_step()
        return "nothing was saved" if step is None else f"the checkpoint of step {step} is kept"

    def latest(self, like: State) -> tuple[State, list[float], list[Row]] | None:
        """State, losses and measured rows of the newest checkpoint."""
        step = self.manager and self.manager.latest_step()
        if self.manager is None or step is None:
            return None
        leaves, form = jax.tree.flatten(like)
        items = ocp.args.Composite(
            state=ocp.args.StandardRestore(leaves), record=ocp.args.JsonRestore()
        )
        found = self.manager.restore(step, args=items)
        record = found["record"]
        return jax.tree.unflatten(form, found["state"]), record["losses"], record["rows"]

    def save(self, step: int, state: Any, losses: list[float], rows: list[Row]) -> None:
        """Keep this point of the run beside the one before."""
        if self.manager is not None:
            items = ocp.args.Composite(
                state=ocp.args.StandardSave(jax.tree.leaves(state)),
                record=ocp.args.JsonSave({"losses": losses, "rows": rows}),
            )
            self.manager.save(step, args=items)


@contextmanager
def saved(out: Path | None, configuration: dict[str, Any]) -> Iterator[Saved]:
    """The checkpoints in a folder; refuses those of a run with another configuration.

    An interruption says where they are.
    """
    if out is None:
        yield Saved()
        return
    options = ocp.CheckpointManagerOptions(max_to_keep=KEPT)
    folder = Path(out).absolute() / "checkpoints"
    with ocp.CheckpointManager(folder, options=options, metadata=configuration) as manager:
        _check(manager, configuration, folder)
        try:
            yield Saved(manager)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted; what was saved is in {folder}, and the same command goes on."
            ) from None
        manager.wait_until_finished()


def _check(manager: ocp.CheckpointManager, configuration: dict[str, Any], folder: Path) -> None:
    there = dict(manager.metadata().custom_metadata or {})
    if other := difference(there, configuration):
        raise ValueError(f"Argument `out` must hold this run, but {folder} has {other}.")
