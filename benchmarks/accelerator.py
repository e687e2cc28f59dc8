"""Training, confinement, and reduced against full on one accelerator, in under four minutes.

    python benchmarks/accelerator.py

writes `benchmarks/accelerator.json`, from which `imir bench --write README.md` makes a table.
"""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import jax

from fullmodel.bench.steps import compare
from fullmodel.bench.training import setting_of, speed
from fullmodel.bench.work import canonical_exact, in_pairs, whole_manifold
from fullmodel.confinement import orbit_of, smallest, trajectories
from imir.basis import basis_of
from imir.flow import Optimizer
from imir.tasks.task import Task

SECONDS = 240.0
WIDTHS = (256, 512, 1024, 2048, 4096)
FILE = Path(__file__).with_suffix(".json")


def main() -> None:
    """Measure what fits in the time, the most wanted first, and write what there is."""
    began = time.perf_counter()
    found = {"device": jax.devices()[0].device_kind, "speeds": [], "skipped": []}
    calls = {
        "confinement": lambda: found.update(confinement=confinement()),
        "reduced": lambda: found.update(reduced=reduced()),
        **{
            f"d = {d}, {products or 'float32'}": lambda d=d, p=products: found["speeds"].append(
                asdict(speed(setting_of(d, p), 20, 3))
            )
            for d in WIDTHS
            for products in (None, "bfloat16")
        },
    }
    for name, call in calls.items():
        if time.perf_counter() - began > 0.8 * SECONDS:
            found["skipped"].append(name)
            continue
        call()
        print(f"{time.perf_counter() - began:5.0f} s  {name}", file=sys.stderr)
    found["seconds"] = time.perf_counter() - began
    FILE.write_text(json.dumps(found, indent=1) + "\n")


def confinement() -> dict[str, float]:
    """A full run in 1,200 dimensions, two layers of nine heads, against its coordinates."""
    with jax.enable_x64(True):
        task = smallest(Task("recall", rare_fraction=1.0))
        basis = basis_of(task, 2, 9)
        start = 0.1 * jax.random.normal(jax.random.key(0), (len(basis.elements),))
        prompts, _ = orbit_of(task, jax.random.key(1))
        run = trajectories(basis, start, prompts, Optimizer("momentum", 0.05), 20, every=10)
        width = basis.configuration.size * len(basis.paths(3))
    return {"width": width, "error": run.error, "drift": run.drift}


def reduced() -> list[dict]:
    """A gradient step of the full model over one of the reduced model, at d = 1,028."""
    with jax.enable_x64(True):
        works = {
            "whole manifold": whole_manifold(in_pairs(32, 92), 32),
            "canonical, exact": canonical_exact(in_pairs(32, 92)),
        }
        return [asdict(compare(name, work, 3, 0.2)) for name, work in works.items()]


if __name__ == "__main__":
    main()
