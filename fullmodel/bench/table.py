"""The benchmark as Markdown, and its place in a file."""

from pathlib import Path
from typing import Any

from fullmodel.bench.runs import Run
from fullmodel.bench.steps import Row, Side
from fullmodel.bench.suite import Bench
from fullmodel.bench.training import Speed

BEGIN, END = "<!-- bench -->", "<!-- /bench -->"
STEPS = (
    "coordinates", "d", "V", "blocks", "prompts", "time", "float32", "FLOPs", "memory", "compile",
    "share of peak", "Δ loss", "Δ gradient",
)  # fmt: skip
RUNS = ("d", "V", "blocks", "prompts", "steps to ICL", "time", "Δ coordinates")
ABOUT = """\
Full transformer over reduced model, both jitted, on the same prompts in one run: a gradient step in
float64 (fastest of interleaved repeats), the full one in float32 over the reduced one in float64,
the compiler's count of FLOPs, its bytes of temporaries, arguments and outputs, seconds of
compilation. Share: what full / reduced reach of the peak, the best rate of a matrix
product at any time of the run. Δ: largest
differences of loss and projected gradient over three steps."""
RUNNING = """\
Until in-context learning emerges (momentum, whole manifold, the same batches of prompts in the
same order): steps of full / reduced, ratio of the whole times, largest difference of coordinates
after one step."""


def markdown(bench: Bench) -> str:
    """Both tables with what they mean."""
    steps = _table(STEPS, [_step(row, bench.shares(row)) for row in bench.steps])
    runs = _table(RUNS, [_run(run) for run in bench.runs])
    training = [] if bench.training is None else [f"Training: {_speed(bench.training)}."]
    return "\n\n".join([ABOUT, steps, RUNNING, runs, *training])


def accelerated(found: dict[str, Any]) -> str:
    """What `benchmarks/accelerator.py` measured."""
    speeds = [f"- {_speed(Speed(**one))}" for one in found["speeds"]]
    confined, rows = found["confinement"], found["reduced"]
    ratios = [f"- {r['work']}, d = {r['width']:,}: {_times(_ratio(r))}" for r in rows]
    return "\n".join([
        f"On one {found['device']}: drift off the manifold {confined['drift']:.0e} of the way at "
        f"d = {confined['width']:,}; a step of the full model over one of the reduced model, and "
        "training:", "", *ratios, *speeds,
    ])  # fmt: skip


def _ratio(row: dict[str, Any]) -> float:
    return row["full"]["seconds"] / row["reduced"]["seconds"]


def _speed(found: Speed) -> str:
    numbers = found.products or "float32"
    return (
        f"d = {found.width:,}, {found.places} places, {found.batch} prompts, {numbers}: "
        f"{found.steps / found.bare:.0%} of the steps of a bare loop of the same matrix products, "
        f"{found.share:.0%} of the peak"
    )


def _table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _step(row: Row, shares: dict[str, float]) -> list[str]:
    sizes = row.width, row.vocabulary, row.blocks, row.prompts
    start = [f"{row.coordinates} ({row.work})", *(f"{x:,}" for x in sizes)]
    if row.full is None or row.full_float32 is None:
        return [*start, "full does not fit", *["–"] * 7]
    share = f"{shares['full']:.0%} / {shares['reduced']:.1%}"
    return [*start, *_ratios(row.full, row.full_float32, row.reduced), share, *_errors(row)]


def _ratios(full: Side, single: Side, reduced: Side) -> list[str]:
    pairs = (
        (full.seconds, reduced.seconds),
        (single.seconds, reduced.seconds),
        (full.flops, reduced.flops),
        (full.bytes, reduced.bytes),
        (full.compile_seconds, reduced.compile_seconds),
    )
    return [_times(a / b) for a, b in pairs]


def _errors(row: Row) -> list[str]:
    return [f"{row.loss_error:.0e}", f"{row.gradient_error:.0e}"]


def _run(run: Run) -> list[str]:
    sizes = run.width, run.vocabulary, run.blocks, run.prompts
    steps = [
        f"{way.steps:,}" if way.emerged else f"> {way.steps:,}" for way in (run.full, run.reduced)
    ]
    note = f" (extrapolated from {run.full.steps:,} steps)" if run.extrapolated else ""
    return [
        *(f"{x:,}" for x in sizes), " / ".join(steps), _times(run.ratio) + note,
        f"{run.first_error:.0e}",
    ]  # fmt: skip


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 10 else f"{ratio:.1f}×"


def around(file: Path) -> tuple[str, str]:
    """What stands before and after the markers of a file; `ValueError` where it has none."""
    before, begin, rest = file.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(
            f"Argument `write` must be a file with the markers {BEGIN} and {END}, "
            f"but {str(file)!r} has not."
        )
    return before, after


def write(file: Path, text: str) -> None:
    """Replace what stands between the markers of a file."""
    before, after = around(file)
    file.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
