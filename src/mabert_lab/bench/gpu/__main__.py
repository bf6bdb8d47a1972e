"""`python -m mabert_lab.bench.gpu`: every step that has no result of this commit and GPU in the folder yet.

Runs from the sources (``PYTHONPATH=src``) with whatever versions are there; ``MABERT_COMMIT`` tells the commit of a
copy without its history. Each step is a process of its own with a time limit, so that one that fails or hangs costs
neither the others nor what they left. Nothing is timed where the operators are wrong. What a step has measured stands
in ``*.partial.json``, for the tests in their log, and the next run goes on from there.
"""

import argparse
import functools
import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import mabert
from mabert.environment import installed
from mabert.processes import end_with_parent
from mabert.reading import read_json
from mabert_lab.bench.gpu.pieces import GPU_LOST, Pieces
from mabert_lab.bench.operators import refuse_unless_correct
from mabert_lab.bench.results import measured_on, write

LIMIT = 560.0
"""Seconds of a step, so that one that hangs costs little, and that it ends within ten minutes with all around it."""

GRACE = 15.0
"""Seconds that a step has to end in once it is interrupted."""

LENGTHS = {"best": (128, 512, 1024, 2048, 4096, 8192, 16384, 65536), "paper": (128, 512, 1024, 2048, 4096)}
TRAINED_LENGTHS = {"best": (512, 4096, 16384), "paper": (512, 4096)}
"""Tokens at which all seven encoders are measured, by profile."""

RIVALS = tuple(itertools.product(LENGTHS, ("latency", "memory", "training")))
"""Steps that measure all seven: profile and measure."""

_OPERATOR_TESTS, _MODEL_TESTS = "tests/ops/test_triton.py", "tests/model/test_gpu.py"
_PYTEST = (sys.executable, "-m", "pytest")
# Other versions than the tested ones may warn of other things, and lack pytest's plugins.
_PLAIN = ("-p", "no:cacheprovider", "-o", "addopts=", "-o", "filterwarnings=default")


def tests(pieces: Pieces) -> dict[str, Any]:
    """Run the GPU tests of operators and model, side by side where pytest can; those that have passed stay passed."""
    log = pieces.folder / "gpu-tests.log"
    begun = f"# {json.dumps(pieces.measured)}"
    chosen = [_OPERATOR_TESTS, _MODEL_TESTS]
    if log.is_file() and log.read_text(encoding="utf-8").startswith(begun + "\n"):
        chosen = not_passed(log, chosen)
        if not chosen:
            return {"exit_code": 0, "output": ["all have passed before"]}
    else:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(begun + "\n", encoding="utf-8")
    spread = ("-n", "8") if importlib.util.find_spec("xdist") else ()
    return _pytest(log, *_PYTEST, *chosen, *spread)


def not_passed(log: Path, files: list[str]) -> list[str]:
    """Names of the tests in some files that have not passed by a log; the files where they cannot be listed."""
    listed = subprocess.run([*_PYTEST, *files, *_PLAIN, "--collect-only", "-q"], capture_output=True, text=True)
    if listed.returncode:
        return files
    lines = log.read_text(encoding="utf-8").splitlines()
    # "NAME PASSED [ 10%]", or of several processes "[gw0] [ 10%] PASSED NAME".
    passed = {
        match[1] or match[2] for line in lines if (match := re.search(r"(?:(\S+::\S+) PASSED|PASSED (\S+::\S+))", line))
    }
    return [name for name in listed.stdout.splitlines() if "::" in name and name not in passed]


def sanitizer(pieces: Pieces) -> dict[str, Any]:
    """Run a few of them under compute-sanitizer, each tensor in memory of its own, so that a step outside shows."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return {"skipped": "compute-sanitizer is not installed"}
    log = pieces.folder / "gpu-sanitizer.log"
    log.unlink(missing_ok=True)
    # Python itself and nothing that it starts, such as compilers; errors that torch asks for and handles are none.
    options = ("--error-exitcode", "9", "--report-api-errors", "no", "--target-processes", "application-only")
    chosen = (_OPERATOR_TESTS, "-k", "written or packed")
    return _pytest(log, tool, *options, *_PYTEST, *chosen, PYTORCH_NO_CUDA_MEMORY_CACHING="1")


def _pytest(log: Path, *command: str, **environment: str) -> dict[str, Any]:
    """Run tests; what they print is added to a file as it comes, in case their time ends before they do."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as lines:
        ran = subprocess.Popen(
            [*command, *_PLAIN, "-v"],
            stdout=lines,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            preexec_fn=end_with_parent,
        )
        # An interrupt is for pytest too, which then prints what it has and ends.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            code = ran.wait()
        finally:
            signal.signal(signal.SIGINT, before)
    return {"exit_code": code, "output": log.read_text(encoding="utf-8").splitlines()[-60:]}


def operators(pieces: Pieces) -> dict[str, Any]:
    """Time scan and convolution."""
    from mabert_lab.bench.gpu.operators import measure

    return measure(pieces)


def forwards(pieces: Pieces, compiled: bool = False) -> dict[str, Any]:
    """Time forwards of whole models."""
    from mabert_lab.bench.gpu.models import measure_forwards

    return measure_forwards(pieces, compiled=compiled)


def training(pieces: Pieces, compiled: bool = False) -> dict[str, Any]:
    """Time training steps; take one apart, where they are not compiled."""
    from mabert_lab.bench.gpu.models import measure_training

    return measure_training(pieces, compiled=compiled)


def uneven(pieces: Pieces) -> dict[str, Any]:
    """Time texts of uneven length, unpadded and padded."""
    from mabert_lab.bench.gpu.models import measure_lengths

    return measure_lengths(pieces)


def rivals(profile: str, measure: str, pieces: Pieces) -> dict[str, Any]:
    """Measure all seven encoders; in the paper's settings at the paper's lengths."""
    from mabert_lab.bench.models import Plan, run
    from mabert_lab.bench.turns import Protocol

    # The limit leaves room for the first call, which compiles.
    protocol = Protocol(warm_seconds=1.0, budget=2.0, limit=90.0)
    lengths = LENGTHS[profile] if measure != "training" else TRAINED_LENGTHS[profile]
    options: dict[str, Any] = {"measures": (measure,), "profiles": (profile,), "lengths": lengths}

    # The paper says bf16; its numbers of memory are those of weights in float32.
    dtypes = ("bfloat16", "float32") if (profile, measure) == ("paper", "memory") else ("bfloat16",)

    def measured(model: str) -> dict[str, Any]:
        return run(Plan(models=(model,), dtypes=dtypes, device="cuda", protocol=protocol, **options))

    return _of_all_seven(pieces, measured)


def many_texts(pieces: Pieces) -> dict[str, Any]:
    """Measure tokens a second over many texts, all seven encoders at their best batch."""
    from mabert_lab.bench.throughput import run

    return _of_all_seven(pieces, lambda model: run(models=(model,), device="cuda", times=16))


def _of_all_seven(pieces: Pieces, measured: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Measure one encoder after the other, as a GPU is measured anyhow, and put their rows together.

    A rival may fail, which its rows tell; where MaBERT does, the step has failed.
    """
    from mabert.baselines.registry import FAMILIES
    from mabert_lab.bench.turns import ANCHOR

    def wrong(result: dict[str, Any]) -> str | None:
        failed = [f"{row['model']}: {row['reason']}" for row in result["rows"] if row["status"] == "failed"]
        for line in failed:
            sys.stdout.write(f"{pieces.step}: {line}\n")
        return next((line for line in failed if line.startswith(f"{ANCHOR}:")), None)

    parts = pieces.measure({model: functools.partial(measured, model) for model in FAMILIES}, wrong)
    together: dict[str, Any] = dict(next(iter(parts.values()), {}))
    together["rows"] = [row for part in parts.values() for row in part["rows"]]
    if "parameters" in together:
        together["parameters"] = {name: n for part in parts.values() for name, n in part["parameters"].items()}
    return together


Step = Callable[[Pieces], dict[str, Any]]
"""What a step runs, given what it has done before; it returns its result."""

STEPS: dict[str, Step] = {
    "tests": tests,
    "operators": operators,
    "training": training,
    "forwards": forwards,
    "uneven": uneven,
    **{f"{profile}_{measure}": functools.partial(rivals, profile, measure) for profile, measure in RIVALS},
    "many_texts": many_texts,
    "compiled_training": functools.partial(training, compiled=True),
    "compiled_forwards": functools.partial(forwards, compiled=True),
    "sanitizer": sanitizer,
}


def main() -> int:
    """Run what is missing; return 1 where a step failed."""
    reader = argparse.ArgumentParser(prog="python -m mabert_lab.bench.gpu", description=__doc__)
    reader.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)} [all]")
    reader.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results"), help="[%(default)s]")
    reader.add_argument("--here", action="store_true", help="run one step in this process")
    options = reader.parse_args()
    unknown = [step for step in options.steps if step not in STEPS]
    if unknown:
        reader.error(f"no such step: {unknown[0]}; there are {', '.join(STEPS)}")
    if not torch.cuda.is_available():
        reader.error("no GPU is visible to torch; the CPU is measured by `make bench`")
    if options.here:
        for step in options.steps:
            _run_here(step, options.output)
        return 0
    failed = [step for step in options.steps or STEPS if not _run(step, options.output)]
    if failed:
        sys.stderr.write(f"failed: {', '.join(failed)}; run again to try these once more\n")
    return int(bool(failed))


def _run_here(step: str, output: Path) -> None:
    if step not in ("tests", "sanitizer"):
        refuse_unless_correct("cuda")
    pieces = Pieces(step, output, _measured_by())
    result = {"environment": measured_on(), "step": step, "sources": sources(), **STEPS[step](pieces)}
    failed = bool(pieces.errors or result.get("exit_code"))
    if failed:
        result["errors"] = pieces.errors
    path = write(result, output, f"gpu-{step}")
    if failed:
        path.rename(path.with_suffix(".failed.json"))
        sys.stdout.write("\n".join(result.get("output", ())) + "\n")
        raise SystemExit(1)
    pieces.remove()


def _run(step: str, output: Path) -> bool:
    if _is_done(step, output):
        sys.stdout.write(f"{step}: done before\n")
        return True
    sys.stdout.write(f"{step} ...\n")
    sys.stdout.flush()
    started = time.monotonic()
    code: int | None = GPU_LOST
    while code == GPU_LOST:  # each time one piece more has been tried
        code = _in_a_process(step, output, LIMIT - (time.monotonic() - started))
    outcome = "out of time" if code is None else "done" if code == 0 else f"exit code {code}"
    sys.stdout.write(f"{step}: {outcome} after {time.monotonic() - started:.0f} s\n")
    return code == 0


def _in_a_process(step: str, output: Path, seconds: float) -> int | None:
    """Run a step; return its exit code, or None where its time ended."""
    command = [sys.executable, "-m", "mabert_lab.bench.gpu", "--here", step, "-o", str(output)]
    # Two sides that each fill the memory take turns: what one has freed must serve the other.
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **os.environ}
    before = signal.signal(signal.SIGTERM, _stop)
    process = subprocess.Popen(command, start_new_session=True, env=environment, preexec_fn=end_with_parent)
    try:
        return process.wait(max(seconds, 0.0))
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.returncode is None:
            _end(process)
        signal.signal(signal.SIGTERM, before)


def _stop(number: int, _: FrameType | None) -> None:
    """End as a signal asks, by way of all that is to be done at the end."""
    raise SystemExit(128 + number)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a step with all it started: a test that goes on would be timed with what comes next. It may say what it has
    first."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def sources() -> str:
    """Return a checksum of package and GPU tests: a copy without its history has no commit to be known by."""
    files = sorted([*Path(mabert.__file__).parent.rglob("*.py"), *Path("tests").rglob("*.py")])
    return f"{zlib.crc32(b''.join(file.read_bytes() for file in files)):08x}"


def _measured_by() -> list[str | None]:
    """What decides whether numbers may stand together: sources, GPU and versions."""
    return [sources(), torch.cuda.get_device_name(), installed("torch"), installed("triton")]


def _is_done(step: str, output: Path) -> bool:
    """Tell whether the folder holds this step's result of these sources and versions on this GPU."""
    here = _measured_by()
    for path in output.glob(f"*-gpu-{step}.json"):
        there = read_json(path)
        if "sources" not in there or "skipped" in there:  # another's, of the same name
            continue
        packages = there["environment"]["packages"]
        if [there["sources"], there["environment"]["device"], packages["torch"], packages["triton"]] == here:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
