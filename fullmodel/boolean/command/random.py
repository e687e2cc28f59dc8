"""`imir boolean random`: what random transformers compute."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from fullmodel.boolean import plot
from fullmodel.boolean.command.options import ArchitectureOptions
from fullmodel.boolean.ensemble import (
    LIMIT,
    Ensemble,
    bound,
    control,
    transformers,
    zero_share,
)
from fullmodel.boolean.recognizer import (
    RULES,
    Architecture,
    Initialization,
    Rule,
)
from imir.cli.options import folder
from imir.cli.report import Report, save_report
from imir.plot import save


@dataclass(frozen=True)
class Random(ArchitectureOptions):
    """Sensitivity profiles of random transformers, beside those of uniformly random functions.

    Example: imir boolean random --length 10 --models 1000 --out random
    """

    length: int = 10
    """N, bits of a string."""
    models: int = 1000
    """Transformers of each initialisation, and functions of the control."""
    initializations: tuple[Rule, ...] = RULES
    """How parameters are drawn."""
    epsilon: float = 0.0
    """ε of the layer norm."""
    margin: float = 0.0
    """ξ: how many models recognise their function with this margin is reported."""
    memory: int = 2**24
    """Bytes for intermediate values."""

    def report(self) -> Report:
        if not 0 <= self.margin < np.inf:
            raise ValueError(f"Argument `margin` must not be negative, but is {self.margin}.")
        architecture = self.architecture(self.length)
        found = [self._drawn(architecture, rule) for rule in self.initializations]
        uniform = control(self.length, self.models, self.seed)
        data = self._data(found, uniform, bound(architecture))
        files = []
        if self.out is not None:
            figure = plot.random_figure([*found, uniform], bound(architecture))
            files = save(figure, str(folder(self.out) / "random"))
        text = "\n".join([*self._lines(found, uniform, architecture), *files])
        return save_report(self, Report(text, {**data, "files": files}))

    def _drawn(self, architecture: Architecture, rule: Rule) -> Ensemble:
        def progress(parts: Iterable) -> Iterable:
            return tqdm(parts, file=sys.stderr, desc=rule)

        chosen = Initialization(rule, self.scale)
        return transformers(architecture, chosen, self.models, self.seed, self.memory, progress)

    def _data(self, found: list[Ensemble], uniform: Ensemble, least: float) -> dict[str, Any]:
        return {
            "length": self.length,
            "models": self.models,
            "with_zero_sensitivity": {e.name: e.with_zero for e in found},
            "mean_profile": {e.name: e.mean_profile.tolist() for e in found},
            "zero_count_quartiles": {e.name: _quartiles(e) for e in found},
            "constant": {e.name: e.constant for e in found},
            "recognized": {e.name: self._recognized(e) for e in found},
            "bound": least,
            "bound_says_nothing": least < 1,
            "control": {
                "models": self.models,
                "with_zero_sensitivity": uniform.with_zero,
                "mean_profile": uniform.mean_profile.tolist(),
                "zero_count_quartiles": _quartiles(uniform),
                "share": uniform.share,
                "standard_error": uniform.standard_error,
                "expected": zero_share(self.length),
                "limit": LIMIT,
            },
        }

    def _recognized(self, ensemble: Ensemble) -> int:
        assert ensemble.margin is not None
        return int(np.sum(ensemble.margin >= self.margin))

    def _lines(
        self, found: list[Ensemble], uniform: Ensemble, architecture: Architecture
    ) -> list[str]:
        lines = [
            f"{e.name:<16} {e.with_zero} of {self.models} have strings of sensitivity zero "
            f"(median {np.median(e.zeros):g} of {2**self.length}, {e.constant} are constant), "
            f"average sensitivity {np.mean(e.averages):.3g}, {self._recognized(e)} recognise with "
            f"margin {self.margin:g}"
            for e in found
        ]
        of_control = (
            f"{'control':<16} {uniform.with_zero} of {self.models}: {uniform.share:.4f} ± "
            f"{uniform.standard_error:.4f}, expected {zero_share(self.length):.4f} "
            f"(1 − 1/e = {LIMIT:.4f}), average sensitivity {np.mean(uniform.averages):.3g}"
        )
        least = bound(architecture)
        says = "which says nothing" if least < 1 else "for all N large enough"
        theorem = f"Theorem 4.5     at least {least:.3g} such strings, {says}"
        assumed = [] if self.epsilon == 0 else ["(a theorem on ε = 0; here ε is positive)"]
        return [*lines, of_control, theorem, *assumed]


def _quartiles(ensemble: Ensemble) -> list[float]:
    return np.quantile(ensemble.zeros, (0, 0.25, 0.5, 0.75, 1)).tolist()
