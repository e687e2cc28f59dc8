"""The command `imir depart`."""

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from tqdm import tqdm

from fullmodel.depart import plot
from fullmodel.depart.adam import adam
from fullmodel.depart.attraction import attraction
from fullmodel.depart.laws import all_laws
from fullmodel.depart.regimes import ENDS, confusions, scatter
from fullmodel.depart.replication import replication
from fullmodel.depart.table import Row, table
from imir.cli.options import folder
from imir.cli.report import Report, number, save_report
from imir.plot import save

Part = Literal["table", "laws", "attraction", "adam", "regimes", "replication"]


@dataclass(frozen=True)
class Found:
    """What a part found: in words, as JSON, and drawn."""

    text: str
    data: Any
    figure: Figure


@dataclass(frozen=True)
class Depart:
    """What each departure from the theorem's assumptions costs, one at a time.

    table: each option of architecture and training, with the share of what was learned that lies in
    the span of Theorem 1, beside that of random directions, and the emergence predicted; laws:
    exponents over batch and width; attraction: does the part off the span shrink; adam: the ε from
    which it is confined; regimes: reached against predicted; replication: a standard transformer on
    longer and longer prompts. Runs in --out are kept: interrupt it, run it again, and it goes on.

    Example: imir depart --parts table laws --seeds 3 --out departures
    """

    parts: tuple[Part, ...] = ("table", "laws")
    """What is measured. On two cores and with one seed the table and regimes take some ten
    minutes each, replication longer than half an hour, the other parts less."""
    seeds: int = 1
    """Runs of each setting."""
    out: Path | None = None
    """Folder for files; made if it does not exist."""
    json: bool = False
    """One JSON object on standard output, and nothing else there."""

    def report(self) -> Report:
        if self.seeds < 1:
            raise ValueError(f"Argument `seeds` must be at least 1, but is {self.seeds}.")
        if not self.parts:
            raise ValueError("Argument `parts` must not be empty, but is.")
        found: dict[str, Found] = {}
        files = []
        for part in self.parts:
            found[part] = PARTS[part](self.seeds, self.out, _bar(part))
            files += self._draw(part, found[part].figure)
        data = {**{part: one.data for part, one in found.items()}, "files": files}
        text = "\n\n".join(one.text for one in found.values())
        return save_report(self, Report("\n".join([text, *files]), data))

    def _draw(self, part: str, figure: Figure) -> list[str]:
        if self.out is None:
            plt.close(figure)
            return []
        return save(figure, str(folder(self.out) / part))


def _bar(part: Part) -> Callable:
    return partial(tqdm, desc=part, file=sys.stderr)


def _table(seeds: int, out: Path | None, bar: Callable) -> Found:
    rows, runs = table(seeds, out, bar)
    split = {
        "under the assumptions": [r for r in runs if r.attrs.get("assumed")],
        "off them": [r for r in runs if not r.attrs.get("assumed")],
    }
    predicted = {name: scatter(some) for name, some in split.items()}
    told = [
        f"emergence {name}: {len(s.observed)} runs, median error {100 * s.median_error:.0f}%, rank "
        f"correlation {s.correlation:.2f}; in the full run alone {s.only_full}, in the reduced one "
        f"alone {s.only_reduced}"
        for name, s in predicted.items()
    ]
    data = {
        "rows": [_plain(r) for r in rows],
        "emergence": {n: _plain(s) for n, s in predicted.items()},
    }
    text = "\n".join([_lines(rows), *told])
    return Found(text, data, plot.table_figure(rows, predicted))


def _laws(seeds: int, out: Path | None, bar: Callable) -> Found:
    with jax.enable_x64(True):
        found = all_laws(bar)
    figure, ax = plt.subplots(figsize=(7, 5), layout="constrained")
    plot.laws(found, ax=ax)
    return Found("\n".join(map(str, found)), [_plain(law) for law in found], figure)


def _attraction(seeds: int, out: Path | None, bar: Callable) -> Found:
    found = attraction(seeds, out=out, bar=bar)
    ends = [
        f"weight decay {a.decay:g}: off-span norm at the end {_spread(a.of_start[:, -1])} of the "
        f"start's, {_spread(a.of_movement[:, -1])} of the way; movement in the span "
        f"{_spread(a.movement[:, -1])} (chance {a.chance:.1e})"
        for a in found
    ]
    return Found("\n".join(ends), [_plain(a) for a in found], plot.attraction_figure(found))


def _adam(seeds: int, out: Path | None, bar: Callable) -> Found:
    found = [adam(precision, bar=bar) for precision in ("float32", "float64")]
    told = [
        f"Adam in {c.precision} is confined from ε = {c.holds_from:g}"
        if c.holds_from is not None
        else f"Adam in {c.precision} is confined for no ε that was tried"
        for c in found
    ]
    figure, ax = plt.subplots(figsize=(5.6, 4), layout="constrained")
    plot.confinement(found, ax=ax)
    data = [{**_plain(c), "holds_from": c.holds_from} for c in found]
    return Found("\n".join(told), data, figure)


def _regimes(seeds: int, out: Path | None, bar: Callable) -> Found:
    found, runs = confusions(out, bar)
    emergence = scatter(runs)
    told = [
        f"{c.name}: {100 * c.agreement:.0f}% of {c.counts.sum()} regimes as predicted"
        for c in found
    ]
    told.append(f"emergence: median error {100 * emergence.median_error:.0f}%")
    data = {
        "regimes": ENDS,
        "grids": [{**_plain(c), "agreement": c.agreement} for c in found],
        "emergence": _plain(emergence),
    }
    return Found("\n".join(told), data, plot.regimes_figure(found))


def _replication(seeds: int, out: Path | None, bar: Callable) -> Found:
    found = replication(seeds, out, bar)
    known = [law for law in (found.observed, found.predicted) if law is not None]
    figure, ax = plt.subplots(figsize=(7, 5), layout="constrained")
    plot.laws(known, ax=ax)
    return Found("\n".join([_lines(found.rows), *map(str, known)]), _plain(found), figure)


PARTS: dict[Part, Callable[[int, Path | None, Callable], Found]] = {
    "table": _table,
    "laws": _laws,
    "attraction": _attraction,
    "adam": _adam,
    "regimes": _regimes,
    "replication": _replication,
}

HEAD = ("weights", "movement", "chance", "canonical", "its chance", "ICL", "step", "predicted")


def _lines(rows) -> str:
    """The table: shares in the span, and when ICL emerged."""
    head = "departure".ljust(32) + "".join(f"{name:>11}" for name in HEAD)
    return "\n".join([head, *map(_line, rows)])


def _line(row: Row) -> str:
    shares = row.weights, row.movement, row.chance, row.canonical, row.canonical_chance, row.icl
    cells = [f"{x:.3f}" if x > 1e-3 or x == 0 else f"{x:.0e}" for x in shares]
    steps = ["—" if s is None else f"{s:.0f}" for s in (row.icl_step, row.predicted_icl_step)]
    failed = f" ({row.failed} of {row.seeds} runs failed)" if row.failed else ""
    return row.name.ljust(32) + "".join(f"{cell:>11}" for cell in [*cells, *steps]) + failed


def _spread(values: np.ndarray) -> str:
    return f"{np.median(values):.3f} ({np.min(values):.3f} to {np.max(values):.3f})"


def _plain(found: Any) -> Any:
    """A dataclass as JSON keeps it."""
    return _as_json(asdict(found))


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_json(x) for key, x in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_as_json(x) for x in value]
    if isinstance(value, np.generic):
        return _as_json(value.item())
    return number(value) if isinstance(value, float) else value
