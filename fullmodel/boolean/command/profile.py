"""`imir boolean profile`: how sensitive a Boolean function is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fullmodel.boolean import plot
from fullmodel.boolean.functions import Function, function, string, table
from fullmodel.boolean.sensitivity import (
    Estimate,
    Sensitivity,
    estimate,
    sensitivity,
    zero_strings,
)
from imir.cli.options import folder
from imir.cli.report import Report, save_report
from imir.plot import save

LISTED = 4096
"""Strings of sensitivity zero that are listed, at most."""


@dataclass(frozen=True)
class Profile:
    """Sensitivity profile of a Boolean function, exact up to 24 bits, else from sampled strings.

    Example: imir boolean profile --function majority --length 11
    """

    function: str
    """parity, majority, and, or (on the first m bits: parity:m), threshold:k, first, dictator:i,
    zero, one, random:SEED, or table:FILE with 2^N characters 0 and 1, in the alphabetical order of
    the strings."""
    length: int
    """N, bits of a string."""
    samples: int | None = None
    """Strings to sample instead of all; the way to lengths above 24."""
    seed: int = 0
    """Seed of the sample."""
    out: Path | None = None
    """Folder for files; made if it does not exist."""
    json: bool = False
    """One JSON object on standard output, and nothing else there."""

    def report(self) -> Report:
        f = function(self.function, self.length)
        report = self._exact(f) if self.samples is None else self._sampled(f, self.samples)
        return save_report(self, report)

    def _exact(self, f: Function) -> Report:
        words = table(f)
        found = sensitivity(words, self.length)
        places = zero_strings(words, self.length, LISTED)
        data = {
            **self._data(found),
            "average": float(found.average),
            "maximum": int(found.maximum),
            "zero_strings": [string(k, self.length) for k in places.tolist()],
            "zero_count": int(found.zeros),
            "closed_form": None if f.profile is None else list(f.profile),
        }
        lines = [f"K_{n} = {count}" for n, count in enumerate(data["profile"]) if count]
        average = f"average sensitivity {data['average']:.12g}, largest {data['maximum']}"
        return self._report([*lines, average, self._named(data)], data, found)

    def _sampled(self, f: Function, samples: int) -> Report:
        found = estimate(f, self.length, samples, jax.random.key(self.seed))
        zeros = [string(k, self.length) for k in found.zero_strings[:LISTED]]
        data = {
            **self._data(found),
            "average": found.average,
            "maximum": found.maximum,
            "zero_strings": zeros,
            "samples": samples,
            "level": found.level,
            "profile_interval": found.profile_interval.tolist(),
            "influences_interval": found.influences_interval.tolist(),
            "average_interval": list(found.average_interval),
        }
        ends = zip(found.profile, *found.profile_interval, strict=True)
        lines = [
            f"K_{n} / 2^N = {share:.4g} ({low:.4g} to {high:.4g})"
            for n, (share, low, high) in enumerate(ends)
            if share
        ]
        low, high = found.average_interval
        average = f"average sensitivity {found.average:.6g} ({low:.6g} to {high:.6g})"
        largest = f"largest seen {found.maximum}; intervals of {100 * found.level:g} % each"
        return self._report([*lines, average, largest], data, found)

    def _data(self, found: Sensitivity | Estimate) -> dict[str, Any]:
        """What both kinds say; a sampled profile is one of estimated counts."""
        exact = isinstance(found, Sensitivity)
        counts = found.profile if exact else np.ldexp(found.profile, self.length)
        return {
            "function": self.function,
            "length": self.length,
            "exact": exact,
            "profile": counts.tolist(),
            "influences": found.influences.tolist(),
        }

    def _named(self, data: dict[str, Any]) -> str:
        strings = data["zero_strings"]
        shown = ", ".join(strings[:8]) + (", …" if data["zero_count"] > 8 else "")
        return f"{data['zero_count']} strings of sensitivity zero" + (shown and f": {shown}")

    def _report(
        self, lines: list[str], data: dict[str, Any], found: Sensitivity | Estimate
    ) -> Report:
        files = []
        if self.out is not None:
            figure = plot.profile_figure(self.function, found)
            files = save(figure, str(folder(self.out) / "profile"))
        return Report("\n".join([*lines, *files]), {**data, "files": files})
