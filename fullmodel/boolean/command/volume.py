"""`imir boolean volume`: how much of parameter space computes a function."""

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from fullmodel.boolean.command.options import RecognizerOptions, lengths
from fullmodel.boolean.functions import function
from fullmodel.boolean.plot_volume import volume_figure
from fullmodel.boolean.volume import (
    Budget,
    Record,
    Splitting,
    Volume,
    from_count,
    models,
    pieces,
    volume_of,
)
from fullmodel.boolean.volume.records import Records, load, save
from imir.cli.options import folder
from imir.cli.report import Report, save_report
from imir.plot import save as save_figure

LONGEST = 16
# Strings whose logits are computed at once.
STRINGS = 1024


@dataclass(frozen=True)
class Volumes(RecognizerOptions):
    """The share of parameter space that computes a function exactly, against the length.

    Plain Monte Carlo where it has a hundred hits, else multilevel splitting; an upper bound with
    its confidence where the budget resolves neither. With --out, the same command goes on where an
    interrupted one stopped, and more --repeats build on those that are there.

    Example: imir boolean volume --function majority --length 3:12 --out pitch
    """

    function: str = "majority"
    """As in `imir boolean profile`."""
    length: str = "3:12"
    """N, or FIRST:LAST."""
    layers: int = 1
    """L."""
    heads: int = 1
    """H, heads in each layer."""
    width: int = 8
    """D."""
    feedforward: int = 16
    """Hidden units of the feed-forward layers; 0 for attention alone."""
    margin: float = 0.0
    """ξ, with which the function must be recognised."""
    draws: int = 10_000
    """Models of plain Monte Carlo."""
    method: str = "auto"
    """plain, splitting, or auto: splitting where plain Monte Carlo has fewer than 100 hits."""
    repeats: int = 8
    """Independent populations of splitting; their scatter is the error."""
    population: int = 256
    """Models in a population."""
    moves: int = 20
    """Random moves of every model at each stage."""
    stages: int = 100
    """Stages after which a population is given up; each halves the volume."""

    def report(self) -> Report:
        wanted = lengths(self.length, LONGEST)
        budget, file = self._budget(), self.out and self.out / "volumes.json"
        records = load(file, self._configuration())
        found = {}
        for N in tqdm(wanted, file=sys.stderr, unit="length"):
            try:
                record = self._measured(N, budget, records, file)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    "interrupted; the same command with the same --out goes on."
                    if file
                    else "interrupted."
                ) from None
            found[N] = volume_of(record, budget)
        counts = {N: records[N].count for N in found}
        plain = {N: from_count(count) for N, count in counts.items() if count is not None}
        files = self._draw(found, plain)
        lines = [f"N = {N}: {volume}" for N, volume in found.items()]
        data = {**self._data(found, records), "files": files}
        return save_report(self, Report("\n".join([*lines, *files]), data))

    def _budget(self) -> Budget:
        if self.method not in ("auto", "plain", "splitting"):
            raise ValueError(
                f"Argument `method` must be auto, plain or splitting, but is {self.method!r}."
            )
        effort = Splitting(self.population, self.moves, stages=self.stages)
        return Budget(self.method, self.draws, self.repeats, effort)

    def _configuration(self) -> dict[str, Any]:
        """What the records depend on; more repeats and lengths may be asked for later."""
        others = ("out", "json", "length", "repeats", "method")
        return {k: v for k, v in asdict(self).items() if k not in others}

    def _measured(self, N: int, budget: Budget, records: Records, file: Path | None) -> Record:
        architecture, key = self.architecture(N), jax.random.key(self.seed)
        space = models(architecture, self.drawn(), function(self.function, N), self.margin)
        batch = max(1, min(64, STRINGS >> N))
        budget = replace(budget, splitting=replace(budget.splitting, batch=batch))
        start = records.get(N, Record())
        bar = tqdm(file=sys.stderr, unit="piece", desc=f"N = {N}", leave=False)
        for record in pieces(space, budget, jax.random.fold_in(key, N), start):
            records[N] = record
            save(file, self._configuration(), records)
            bar.update()
        bar.close()
        return records[N]

    def _draw(self, found: dict[int, Volume], plain: dict[int, Volume]) -> list[str]:
        if self.out is None:
            return []
        figure = volume_figure({self.function: found}, plain, self.initialization)
        return save_figure(figure, str(folder(self.out) / "volume"))

    def _data(self, found: dict[int, Volume], records: Records) -> dict[str, Any]:
        """A number of each kind for a single length, else lists of them."""
        names = ("log10_volume", "error", "method", "upper_bound", "confidence", "ideal_error")
        columns: dict[str, list] = {n: [getattr(v, n) for v in found.values()] for n in names}
        columns["length"] = list(found)
        columns["plain"] = [c and asdict(c) for c in (records[N].count for N in found)]
        columns["repeats"] = [[asdict(r) for r in records[N].repeats] for N in found]
        one = len(found) == 1
        data = {k: values[0] if one else values for k, values in columns.items()}
        return {"function": self.function, **data}
