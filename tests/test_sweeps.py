"""Stores of sweeps: resumed, refused, shared by devices and processes, killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import zarr
from filelock import FileLock

from imir import Flow, Task, axis, phase_diagram
from imir.cli import run
from imir.phases import Axis, Grid, read
from imir.phases import grid as grids
from imir.phases import store as stores
from imir.phases import sweep as sweeps

TASK = Task("recall", blocks=2, vocabulary=16)
FLOW = Flow(until=2e3, rtol=1e-4, saves=12)
AXES = [axis("rare_fraction=0.1:0.9:5"), axis("variability=0:0.8:3")]
COMMAND = (
    *("phase", "--blocks", "2", "--vocabulary", "16", "--until", "2000"),
    *("--x", "rare_fraction=0.1:0.9:48", "--y", "variability=0:0.8:48", "--json"),
)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(grids, "BLOCK", 4)


def diagram(store: Path | None = None, axes=AXES, flow=FLOW, **options):
    with jax.enable_x64(True):
        return phase_diagram(TASK, axes, flow, store=store, **options)


def files(store: Path) -> dict[str, bytes]:
    every = (f for f in sorted(store.rglob("*")) if f.is_file())
    return {str(f.relative_to(store)): f.read_bytes() for f in every}


def imir(*arguments: str, devices: int = 1, **options) -> subprocess.Popen:
    """A command in a process of its own, with so many host devices."""
    code = (
        f"import jax; jax.config.update('jax_num_cpu_devices', {devices}); "
        "from imir.cli import main; main()"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], **pipes, **options)


# Resumed


def test_a_stopped_sweep_goes_on_and_ends_as_if_undisturbed(tmp_path, small_blocks, monkeypatch):
    whole = diagram(tmp_path / "whole")
    computed: list[int] = []
    once = sweeps.run_cells

    def stop_after_two(batch, flow, cells):
        if len(computed) == 2:
            raise KeyboardInterrupt
        computed.append(len(cells))
        return once(batch, flow, cells)

    monkeypatch.setattr(sweeps, "run_cells", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        diagram(tmp_path / "stopped")
    half = read(tmp_path / "stopped")
    assert np.count_nonzero(half["status"]) == sum(computed)
    computed.clear()
    monkeypatch.setattr(sweeps, "run_cells", lambda *a: computed.append(len(a[2])) or once(*a))
    diagram(tmp_path / "stopped")
    assert sum(computed) == whole["status"].size - np.count_nonzero(half["status"])
    assert files(tmp_path / "stopped") == files(tmp_path / "whole")
    assert (whole["status"] == stores.COMPUTED).all()


def test_results_do_not_depend_on_blocks_or_store(tmp_path, monkeypatch):
    in_memory = diagram()
    monkeypatch.setattr(grids, "BLOCK", 4)
    assert in_memory.drop_attrs().identical(diagram(tmp_path / "store").drop_attrs())


def test_a_failed_cell_has_a_status_and_a_reason():
    failed = diagram(axes=[axis("start=0.1:0.1:1")], flow=Flow(max_steps=6, rtol=1e-4))
    assert int(failed["status"].item()) == stores.FAILED
    assert failed.attrs["failures"][int(failed["failure"].item())] == "its step limit was reached"
    assert failed["end"].item() < 1e6


# Refused


def refused(message: str, store: Path, **options) -> None:
    with pytest.raises(ValueError, match=message):
        diagram(store, **options)


def test_another_sweep_is_refused_with_the_difference_named(tmp_path):
    diagram(tmp_path / "s")
    before = files(tmp_path / "s")
    refused(
        r"has until = 2000\.0 where this one has 1000\.0",
        tmp_path / "s",
        flow=replace(FLOW, until=1e3),
    )
    other = [AXES[0], axis("variability=0:0.7:3")]
    refused("has axis variability = .* where this one has", tmp_path / "s", axes=other)
    refused(r"has weight_decay = 0\.0 where this one has 0\.1", tmp_path / "s", weight_decay=0.1)
    assert files(tmp_path / "s") == before


def test_what_is_no_store_is_refused_and_left_alone(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    refused("must be a sweep's store or a new folder", tmp_path / "notes")
    assert files(tmp_path / "notes") == {"a.txt": b"mine"}
    (tmp_path / "file").write_text("mine")
    refused("must be a sweep's store or a new folder", tmp_path / "file")


def test_another_version_is_refused(tmp_path):
    diagram(tmp_path / "s")
    zarr.open_group(tmp_path / "s").attrs["imir_store"] = 99
    refused("must have version 1, but has 99", tmp_path / "s")


def test_two_runs_at_once_are_refused(tmp_path):
    with FileLock(tmp_path / "s.lock"):
        refused("must be used by one run at a time", tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_store_that_can_no_longer_be_written_keeps_what_it_has(
    tmp_path, small_blocks, monkeypatch
):
    calls: list[int] = []
    once = stores.write

    def full(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        once(*arguments)

    monkeypatch.setattr(stores, "write", full)
    with pytest.raises(OSError, match=r"must stay writable, but .*No space left.*finished cells"):
        diagram(tmp_path / "s")
    assert np.count_nonzero(read(tmp_path / "s")["status"]) == 4


def test_grids_without_cells_and_with_absurdly_many_are_refused():
    with pytest.raises(ValueError, match="must span 1 to 10000000 cells, but has none = 0"):
        Grid(TASK, ())
    many = tuple(axis(f"{name}=0:0.5:1000") for name in ("rare_fraction", "variability"))
    with pytest.raises(ValueError, match="1000 × 1000 × 1000 = 1000000000"):
        Grid(TASK, (*many, axis("context_fraction=0:0.5:1000")))
    with pytest.raises(ValueError, match="has rare_fraction twice"):
        Grid(TASK, (AXES[0], AXES[0]))


def test_axes_name_coordinates_that_exist():
    with pytest.raises(ValueError, match=r"must name a coordinate among alpha, beta, .*'omega'"):
        diagram(axes=[axis("start.omega=0:1:2")])


# Axes


def test_initial_values_seeds_and_clamps_are_axes():
    axes = [axis("seed=0:2:3"), axis("clamp.delta=0:2:2"), axis("start.beta=0.5:0.5:1")]
    task = Task("recall", blocks=2, vocabulary=16, variability=0.2)
    with jax.enable_x64(True):
        swept = phase_diagram(task, axes, Flow(until=1e-3, saves=4), start=0.1)
    assert swept["status"].dims == ("start.beta", "clamp.delta", "seed")
    ends = swept["coordinates"]
    assert np.allclose(ends.sel(coordinate="delta").values[0], [[0.0] * 3, [2.0] * 3])
    assert np.allclose(ends.sel(coordinate="beta"), 0.5, atol=1e-4)
    expected = [0.1 * np.random.default_rng(s).normal(size=4)[0] for s in range(3)]
    assert np.allclose(ends.sel(coordinate="alpha").values[0, 0], expected, atol=1e-4)


def test_blocks_cover_every_cell_once():
    counts = Axis("blocks", (2.0, 3.0, 4.0))
    grid = Grid(TASK, (axis("rare_fraction=0:1:37"), counts, axis("variability=0:0.5:21")))
    blocks = grid.by_blocks(np.argwhere(np.ones(grid.shape, bool)))
    assert max(map(len, blocks)) <= grids.BLOCK
    assert all(len(set(block[:, 1])) == 1 for block in blocks)
    assert len(np.unique(np.concatenate(blocks), axis=0)) == grid.size == sum(map(len, blocks))


# Devices, processes and signals


def finished(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out


def differ(first: Path, second: Path) -> float:
    """Largest difference of two stores, relative to numbers above one."""
    a, b = (read(p / "phase.zarr").load() for p in (first, second))
    pairs = [(a[name].values, b[name].values) for name in a.data_vars]
    assert all(np.array_equal(np.isnan(x), np.isnan(y)) for x, y in pairs)
    return max(float(np.max(np.nan_to_num(abs(x - y) / np.maximum(1, abs(x))))) for x, y in pairs)


@pytest.mark.slow
def test_devices_and_processes_give_the_same_store(tmp_path):
    """Bit for bit, but for one device: its program is compiled without partitions, and rounds
    otherwise by some 2e-12 after a whole run."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    for devices in (1, 2, 8):
        finished(imir(*COMMAND, "--out", str(tmp_path / str(devices)), devices=devices))
    share = ("--out", str(tmp_path / "processes"), "--coordinator", address, "--processes", "2")
    pair = [imir(*COMMAND, *share, "--process-id", str(i), devices=2) for i in range(2)]
    for process in pair:
        finished(process)
    assert files(tmp_path / "2" / "phase.zarr") == files(tmp_path / "8" / "phase.zarr")
    assert files(tmp_path / "2" / "phase.zarr") == files(tmp_path / "processes" / "phase.zarr")
    assert differ(tmp_path / "1", tmp_path / "2") < 5e-12


@pytest.mark.slow
def test_twenty_kills_leave_the_store_of_an_undisturbed_run(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    finished(imir(*COMMAND, "--out", str(tmp_path / "whole"), env=environment))
    began = time.perf_counter()
    finished(imir(*COMMAND, "--out", str(tmp_path / "again"), env=environment))
    takes, generator = time.perf_counter() - began, np.random.default_rng(0)
    store, done, lost = tmp_path / "killed" / "phase.zarr", 0, 0
    for _ in range(20):
        process = imir(*COMMAND, "--out", str(tmp_path / "killed"), env=environment)
        time.sleep(generator.uniform(0.2, 1.0) * takes)
        lost += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if (store / "status" / "zarr.json").exists():
            now = int(np.count_nonzero(zarr.open_array(store / "status", mode="r")[...]))
            assert now >= done
            done = now
    assert lost > 5
    finished(imir(*COMMAND, "--out", str(tmp_path / "killed"), env=environment))
    assert files(store) == files(tmp_path / "whole" / "phase.zarr")


def test_processes_that_do_not_fit_are_refused(tmp_path, capsys):
    for options in (["--processes", "2"], ["--coordinator", "localhost:1", "--processes", "2",
                    "--process-id", "2"]):  # fmt: skip
        assert run(["phase", "--out", str(tmp_path / "o"), *options]) == 2
        assert "process" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
