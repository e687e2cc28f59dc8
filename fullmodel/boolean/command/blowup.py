"""`imir boolean blowup`: layer norms, and how much one bit can matter."""

import sys
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from fullmodel.boolean.blowup import Influences, blowup_bound, exponent, measure
from fullmodel.boolean.command.options import RecognizerOptions
from fullmodel.boolean.plot_blowup import blowup_figure
from imir.cli.options import folder
from imir.cli.report import Report, number, save_report
from imir.plot import save

Found = dict[float, list[Influences]]


@dataclass(frozen=True)
class Blowup(RecognizerOptions):
    """Blowup of layer norms and influence of one bit, for random transformers of growing length.

    Example: imir boolean blowup --lengths 16 32 64 128 256 --epsilons 1 1e-2 1e-5 0 --out blowup
    """

    lengths: tuple[int, ...] = (16, 32, 64, 128, 256)
    """N, bits of a string."""
    epsilons: tuple[float, ...] = (1e-2, 1e-5, 0.0)
    """ε of the layer norm."""
    models: int = 32
    """Random transformers of each length."""
    strings: int = 16
    """Strings for each of them."""

    def report(self) -> Report:
        if not self.lengths or not self.epsilons:
            raise ValueError("Arguments `lengths` and `epsilons` must not be empty, but are.")
        found: Found = {epsilon: [] for epsilon in self.epsilons}
        cells = [(e, N) for e in self.epsilons for N in self.lengths]
        for epsilon, N in tqdm(cells, file=sys.stderr):
            found[epsilon].append(self._measured(epsilon, N))
        files = []
        if self.out is not None:
            files = save(blowup_figure(found), str(folder(self.out) / "blowup"))
        rows = [_row(epsilon, runs) for epsilon, runs in found.items()]
        lines = [_line(row) for row in rows]
        data = {"lengths": list(self.lengths), "epsilons": rows, "files": files}
        return save_report(self, Report("\n".join([*lines, *files]), data))

    def _measured(self, epsilon: float, N: int) -> Influences:
        architecture = replace(self, epsilon=epsilon).architecture(N)
        key = jax.random.fold_in(jax.random.key(self.seed), N)
        return measure(architecture, self.drawn(), self.models, self.strings, key)


def _row(epsilon: float, runs: list[Influences]) -> dict[str, Any]:
    slope = (None, None)
    if len(runs) > 1:
        slope = exponent([r.architecture.length for r in runs], [r.influence for r in runs])
    beta, bound = np.array([r.blowup for r in runs]), blowup_bound(runs[0].architecture)
    return {
        "epsilon": epsilon,
        "influence": [float(np.mean(r.influence)) for r in runs],
        "influence_bound": [number(np.median(r.bound)) for r in runs],
        "influence_within": bool(all(np.all(r.largest <= r.bound) for r in runs)),
        "exponent": slope[0],
        "exponent_error": slope[1],
        "blowup_median": number(np.median(beta)),
        "blowup_largest": number(np.max(beta)),
        "blowup_bound": number(bound),
        "blowup_within": bool(np.all(beta <= bound * (1 + 1e-5))),
    }


def _line(row: dict[str, Any]) -> str:
    bound = "unbounded" if row["blowup_bound"] is None else f"at most {row['blowup_bound']:.4g}"
    largest = "infinite" if row["blowup_largest"] is None else f"{row['blowup_largest']:.4g}"
    slope = (
        ""
        if row["exponent"] is None
        else (f"; influence ~ N^{row['exponent']:.3f} (± {row['exponent_error']:.3f})")
    )
    median = "infinite" if row["blowup_median"] is None else f"{row['blowup_median']:.4g}"
    return f"ε = {row['epsilon']:g}: blowup {median} (median), {largest} (largest), {bound}{slope}"
