"""`python -m mabert_lab.bench.gpu STEP`: measurements on a GPU with torch's benchmark timer.

Each row is written as soon as it is measured. The next run of the same sources and versions on the same GPU continues
with the missing rows, failed ones last. No row is begun after `LIMIT`. Nothing is timed if the operators are wrong. The
module runs from the sources (``PYTHONPATH=src``) with the installed versions; ``MABERT_COMMIT`` names the commit of a
copy without git history.

``models`` writes what `mabert bench report` reads.
"""

import argparse
import gc
import importlib.util
import itertools
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.benchmark import Timer

import mabert
import mabert_lab
from mabert.baselines.registry import FAMILIES
from mabert.files.reading import read_json
from mabert.machine.memory import is_out_of_memory
from mabert.machine.rounds import timed
from mabert.ops import depthwise_conv1d, selective_scan
from mabert_lab.bench import lengths
from mabert_lab.bench.models import LENGTHS
from mabert_lab.bench.operators import CHANNELS, STATE, TASKS, conv_inputs, refuse_unless_correct, scan_inputs, task_of
from mabert_lab.bench.profiles import Cell
from mabert_lab.bench.results import measured_on, write
from mabert_lab.bench.tasks import Forward, TrainingStep, make, synchronise
from mabert_lab.bench.turns import ANCHOR, Bounded, Row
from mabert_lab.bench.worker import Answers, in_a_line, status_of

LIMIT = 480.0
"""Seconds after which no new row is begun, so that a step ends within ten minutes."""

SECONDS = 1.0
"""Minimum seconds of a row's calls."""

SAMPLES = 5
"""Approximate samples of a row whose calls take longer than that."""

DEVICE = "cuda"
SHAPES = ((32, 512), (8, 4096), (1, 4096), (1, 65536))
"""Batch sizes and sequence lengths at which operators are measured."""

GPU_LENGTHS = (*LENGTHS, 65536)
PAPER_LENGTHS, TRAINED_LENGTHS = (128, 512, 1024, 2048, 4096), (512, 4096, 16384)
MORE_TEXTS = 8
"""Factor on the CPU's number of texts per batch of uneven lengths."""

FIRST = ("mabert", "bert")
"""Families whose rows come first, since the time on a GPU may end before the last."""

DTYPES = ("bfloat16", "float32")
_COPIED_BYTES = 1 << 30

Fields = dict[str, Any]


class Asked(NamedTuple):
    """A row to measure: its fields, and the function that measures its numbers."""

    fields: Fields
    measure: Callable[[], Fields]


Rows = dict[str, Asked]
"""All rows of a step by their names."""


def spread_of(call: Callable[[], object]) -> Bounded:
    """Times a call with torch's timer, which waits for the GPU, after one warm-up call."""

    def waited() -> None:
        call()
        synchronise(DEVICE)

    waited()
    once = timed(waited)
    timer = Timer("call()", globals={"call": call})
    return Bounded.of(timer.blocked_autorange(min_run_time=max(SECONDS, SAMPLES * once)).times)


def operators() -> Rows:
    """Returns the rows of both operators, and of the rates that bound them: copying and exponentials.

    A row has operator, side, dtype, batch, time, task, times, the rates ``bytes_per_second`` and
    ``exponentials_per_second`` of the task's minimum work, and ``peak_bytes`` beyond its inputs.
    """
    sides: dict[str, dict[str, Callable[..., Tensor]]] = {
        "selective_scan": {"mabert": selective_scan},
        "depthwise_conv1d": {"mabert": depthwise_conv1d},
    }
    if importlib.util.find_spec("selective_scan_cuda"):  # mamba-ssm's default installation lacks it
        sides["selective_scan"]["mamba-ssm"] = _cuda_scan
    rows = {"copy": Asked({}, _copy), "exponentials": Asked({}, _exponentials)}
    for dtype, (batch, length), operator, task in itertools.product(DTYPES, SHAPES, sides, TASKS):
        for side, function in sides[operator].items():
            what = {"operator": operator, "dtype": dtype, "batch": batch, "time": length, "task": task, "side": side}
            rows[", ".join(map(str, what.values()))] = Asked(what, partial(_operator, function, **what))
    return rows


def _copy() -> Fields:
    source = torch.ones(_COPIED_BYTES // 4, device=DEVICE)
    target = torch.empty_like(source)
    spread = spread_of(lambda: target.copy_(source))
    return {**asdict(spread), "bytes_per_second": 2e3 * source.nbytes / spread.fastest_ms}


def _exponentials() -> Fields:
    from mabert.ops.triton.limits import exponential_rate

    return {"exponentials_per_second": exponential_rate(torch.device(DEVICE))}


def _operator(
    function: Callable[..., Tensor], operator: str, dtype: str, batch: int, time: int, task: str, side: str
) -> Fields:
    made = scan_inputs if operator == "selective_scan" else conv_inputs
    inputs = {
        name: tensor.expand(batch, -1, -1).to(DEVICE).contiguous() if tensor.dim() == 3 else tensor.to(DEVICE)
        for name, tensor in made(time, getattr(torch, dtype)).items()
    }
    work = _work(operator, inputs, task)
    if side == "mamba-ssm":  # in its own layout, so that our copies do not count
        inputs = {name: each.transpose(1, 2).contiguous() if each.dim() == 3 else each for name, each in inputs.items()}
    call = task_of(function, inputs, task)
    spread = spread_of(call)
    rates = {f"{name}_per_second": 1e3 * amount / spread.median_ms for name, amount in work.items()}
    return {**asdict(spread), **rates, "peak_bytes": _peak_bytes(call)}


def _work(operator: str, inputs: dict[str, Tensor], task: str) -> dict[str, float]:
    """Counts the minimum bytes and exponentials of a task: each input is read once and each output written once, and
    the scan needs one exponential per state and step in the forward pass and another in the backward pass."""
    u, read = inputs["u"], sum(tensor.nbytes for tensor in inputs.values())
    bytes_, exponentials = read + u.nbytes, 2.0 * u.numel()
    if operator == "selective_scan":
        exponentials = float(u.shape[0] * u.shape[1] * CHANNELS * STATE)
    if task == "forward+backward":
        bytes_ += 2 * read + u.nbytes
        exponentials *= 2
    return {"bytes": bytes_, "exponentials": exponentials}


def _peak_bytes(call: Callable[[], object]) -> int:
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _cuda_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, delta_bias: Tensor
) -> Tensor:
    """Runs mamba-ssm's scan on its own layout; it has no convolution of its own."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    return selective_scan_fn(u, delta, A, B, C, D, z, delta_bias, delta_softplus=True)


def models() -> Rows:
    """Returns the rows of all families: memory, latency and training step, in the profiles best and paper.

    The paper says bf16, but its memory numbers are those of float32 weights. See `mabert_lab.bench.turns.Row`.
    """
    rows: Rows = {}
    names = sorted(FAMILIES, key=lambda name: name not in FIRST)
    for profile, measure, name in itertools.product(("best", "paper"), ("latency", "training", "memory"), names):
        tokens = GPU_LENGTHS if profile == "best" else PAPER_LENGTHS
        dtypes = DTYPES if (profile, measure) == ("paper", "memory") else DTYPES[:1]
        for length, dtype in itertools.product(tokens, dtypes):
            if measure != "training" or length in TRAINED_LENGTHS:
                cell = Cell(measure, profile, dtype, length, DEVICE)  # type: ignore[arg-type]
                rows[f"{name}, {measure}, {profile}, {dtype}, {length:,} tokens"] = _asked(name, cell)
    return rows


def compiled() -> Rows:
    """Returns the rows of MaBERT and BERT with `torch.compile`; see `mabert_lab.bench.turns.Row`."""
    return {
        f"{name}, {length:,} tokens": _asked(name, Cell("latency", "best", "bfloat16", length, DEVICE))
        for length, name in itertools.product(GPU_LENGTHS, ("mabert:compiled", "bert:compiled"))
    }


def uneven() -> Rows:
    """Returns the rows of uneven lengths, unpadded and padded: the sides of `mabert_lab.bench.lengths` as `Row`s."""
    rows: Rows = {}
    for name, (mean, deviation, longest, texts) in lengths.NORMAL.items():
        drawn = lengths.draw(mean, deviation, longest, MORE_TEXTS * texts)
        cell = Cell("throughput", "best", "bfloat16", max(drawn), DEVICE, texts=tuple(drawn))
        for side, (title, contender, layout) in lengths.sides_of().items():
            asked = _asked(contender, replace(cell, layout=layout))
            what = {"lengths": name, "side": side, "tokens": lengths.tokens_of(side, drawn)}
            rows[f"{name}, {title}"] = Asked({**asked.fields, **what}, asked.measure)
    return rows


def _asked(name: str, cell: Cell) -> Asked:
    """Returns the row of one contender in one cell."""

    def measure() -> Fields:
        task = make(name, cell)
        ran = {"setting": task.setting, "batch": task.batch, "micro_batch": task.micro_batch}
        if isinstance(task, Forward) and cell.measure == "memory":
            return {**ran, "peak_mib": task.peak() / 2**20, "weights_mib": task.weights() / 2**20}
        if isinstance(task, Forward):
            return {**ran, **asdict(spread_of(task.run))}
        return {**ran, **_whole_step(task)}

    return Asked(asdict(Row(cell.measure, cell.profile, cell.dtype, cell.device, cell.length, name)), measure)


def _whole_step(task: TrainingStep) -> Fields:
    """Measures a whole training step: one micro-batch with the optimizer step, the others without."""
    step = asdict(spread_of(task.sample))
    missing = task.batch // task.micro_batch - 1
    more = asdict(spread_of(task.run)) if missing else {}
    return step | {what: step[what] + missing * more[what] for what in more if what != "samples"}


STEPS = {step.__name__: step for step in (operators, models, compiled, uneven)}


def run(step: str, output: Path, limit: float = LIMIT) -> tuple[int, int]:
    """Measures the missing rows of a step, writing each at once.

    Args:
        step: A key of `STEPS`.
        output: Folder for the dated JSON file; one of the same step, sources, versions and GPU is continued.
        limit: Seconds after which no new row is begun.

    Returns:
        Number of failed MaBERT rows, and number of rows left.
    """
    rows, result = STEPS[step](), begun(step, output)
    done = {row["row"]: row for row in result["rows"]}
    failed = [name for name in rows if name in done and done[name]["status"] == "failed"]
    started = time.monotonic()
    for name in (*(name for name in rows if name not in done), *failed):
        if time.monotonic() - started > limit:
            break
        asked, lost = rows[name], False
        row = {"row": name, "status": "measured", **asked.fields}
        try:
            done[name] = row | asked.measure()
        except Exception as error:
            done[name] = row | {"status": status_of(error), "reason": in_a_line(error)}
            lost = gpu_is_lost(error)
        result["rows"] = [done[name] for name in rows if name in done]
        write(result, output, f"gpu-{step}")
        sys.stdout.write(f"{step}, {len(done)} of {len(rows)}, {name}: {done[name].get('reason') or 'measured'}\n")
        sys.stdout.flush()
        if lost:  # this process can measure nothing more
            break
        gc.collect()
        torch.cuda.empty_cache()
    broken = [name for name, row in done.items() if row["status"] == "failed" and ANCHOR in name.lower()]
    return len(broken), len(rows) - len(done)


def gpu_is_lost(error: Exception) -> bool:
    """Checks whether an error left the GPU unusable for this process, as an illegal memory access does: it is a driver
    error, from torch or Triton, or the GPU now fails at everything."""
    words = ("CUDA error", "Triton Error [CUDA]")
    if any(word in str(error) for word in words) and not is_out_of_memory(error):
        return True
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError as answer:
        return not is_out_of_memory(answer)
    return False


def begun(step: str, output: Path) -> dict[str, Any]:
    """Returns the folder's result for these sources and versions on this GPU, or a new one."""
    environment = measured_on()
    here = {"step": step, "sources": sources(), "measured_by": _measured_by(environment)}
    for path in sorted(output.glob(f"*-gpu-{step}.json"), reverse=True):
        there = read_json(path)
        if here.items() <= there.items():
            return there
    result = {"kind": f"gpu {step}", "environment": environment, **here, "quick": False, "rows": []}
    if step == "models":
        result |= {"kind": "efficiency", "parameters": {name: Answers(name).parameters() for name in FAMILIES}}
    return result


def sources() -> str:
    """Returns a checksum of package and lab, since a copy without git history has no commit."""
    folders = [Path(module.__file__ or "").parent for module in (mabert, mabert_lab)]
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    return f"{zlib.crc32(b''.join(file.read_bytes() for file in files)):08x}"


def _measured_by(environment: Fields) -> dict[str, str | None]:
    return {"device": environment["device"], **{name: environment["packages"][name] for name in ("torch", "triton")}}


def main() -> int:
    """Measures one step; returns 1 if rows of MaBERT failed or any are left."""
    reader = argparse.ArgumentParser(prog="python -m mabert_lab.bench.gpu", description=__doc__)
    reader.add_argument("step", choices=STEPS)
    reader.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results"), help="[%(default)s]")
    options = reader.parse_args()
    if not torch.cuda.is_available():
        reader.error("no GPU is visible to torch; the CPU is measured by `make bench`")
    refuse_unless_correct(DEVICE)
    failed, left = run(options.step, options.output)
    if failed or left:
        sys.stderr.write(f"{options.step}: {failed} rows of MaBERT failed, {left} are left; run again to go on\n")
    return int(bool(failed or left))


if __name__ == "__main__":
    sys.exit(main())
