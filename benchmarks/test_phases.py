"""Cells a second of a phase diagram, against n × n attention in the same run."""

import time
from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np
import pytest

from imir import Flow, Task, axis, canonical, phase_diagram
from imir.phases.batch import batch_of, run_cells, shape_of
from imir.phases.grid import Grid
from imir.phases.store import COMPUTED
from imir.reduced import forward
from imir.reduced.attention import dense, first_attention
from imir.ties import Tie

TASK = Task("recall", blocks=32, vocabulary=512)
FLOW = Flow(until=3e4, rtol=1e-4, saves=48, stop="icl")


def plane(size: int):
    return axis(f"rare_fraction=0.01:1:{size}"), axis(f"variability=0:0.9:{size}")


def general(task: Task) -> Tie:
    """The same submanifold under other names, which only the general pass knows."""
    tie = canonical(task)
    return replace(tie, names=tuple(f"the {name}" for name in tie.names))


def rate(tie_of: Callable[[Task], Tie], cells: int) -> tuple[float, float, dict[str, np.ndarray]]:
    """Cells a second after compilation, seconds until the first cells, and results."""
    grid = Grid(TASK, plane(128))
    every = np.argwhere(np.ones(grid.shape, bool))
    chosen = every[:: len(every) // cells][:cells]
    began = time.perf_counter()
    batch = batch_of(shape_of(grid, {}), FLOW, tie_of, "exact", 1, jax.random.key(0))
    runs = [grid.cell(index) for index in chosen.tolist()]
    run_cells(batch, FLOW, runs[:1])
    first = time.perf_counter() - began
    began = time.perf_counter()
    found = run_cells(batch, FLOW, runs)
    return cells / (time.perf_counter() - began), first, found


def test_cells_against_general_attention(monkeypatch):
    """The general pass with the first layer's n × n matrix; it shares attention too."""
    monkeypatch.setattr(forward, "first_attention", lambda *a: dense(first_attention(*a)))
    with jax.enable_x64(True):
        fast, compiling, found = rate(canonical, 2048)
        slow, _, expected = rate(general, 64)
    steps = found["steps"].reshape(-1, 32)
    print(f"\nO(n): {fast:.0f} cells/s, {compiling:.1f} s before the first")
    print(f"n × n: {slow:.1f} cells/s; ratio {fast / slow:.0f}")
    print(f"cells of a batch wait for {steps.max(1).mean() / steps.mean() - 1:.0%} more steps")
    assert np.allclose(found["loss"][::32], expected["loss"], rtol=1e-9)
    assert fast / slow > 30


def test_whole_diagram():
    """128 × 128 cells into memory, all told but the compilation."""
    with jax.enable_x64(True):
        phase_diagram(TASK, plane(2), FLOW)
        began = time.perf_counter()
        diagram = phase_diagram(TASK, plane(128), FLOW)
        seconds = time.perf_counter() - began
    print(f"\n{diagram['status'].size / seconds:.0f} cells/s in {seconds:.0f} s")
    assert (diagram["status"] == 1).all()


@pytest.mark.slow
def test_refined_diagram_at_size(tmp_path):
    """512 × 512 by refinement, then the cells it left out, in the same store."""
    with jax.enable_x64(True):
        few = phase_diagram(TASK, plane(512), FLOW, store=tmp_path / "s", refine=32).load()
        every = phase_diagram(TASK, plane(512), FLOW, store=tmp_path / "s").load()
    computed = float(np.mean(few["status"] == COMPUTED))
    wrong = float(np.mean(few["regime"] != every["regime"]))
    print(f"\n{computed:.1%} of the cells computed, {wrong:.2%} of the regimes different")
    assert computed <= 0.1
    assert wrong <= 0.005
