"""`python -m mabert.bench.gpu`: every step that has no result of this commit and GPU in the folder yet.

Runs from the sources (``PYTHONPATH=src``) with whatever versions are there. Each step is a process of its own with a
time limit, so that one that fails or hangs costs neither the others nor what they left.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import mabert
from mabert.bench.results import measured_on, write
from mabert.environment import installed

LIMIT = 580.0
"""Seconds of a step, so that one that hangs costs little."""

_OPERATOR_TESTS, _MODEL_TESTS = "tests/ops/test_triton.py", "tests/model/test_gpu.py"


def tests() -> dict[str, Any]:
    """Run the GPU tests of operators and model."""
    return _pytest(sys.executable, "-m", "pytest", _OPERATOR_TESTS, _MODEL_TESTS)


def sanitizer() -> dict[str, Any]:
    """Run a few of them under compute-sanitizer, each tensor in memory of its own, so that a step outside shows."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return {"skipped": "compute-sanitizer is not installed"}
    command = (
        tool,
        "--error-exitcode",
        "9",
        sys.executable,
        "-m",
        "pytest",
        _OPERATOR_TESTS,
        "-k",
        "written or packed",
    )
    return _pytest(*command, PYTORCH_NO_CUDA_MEMORY_CACHING="1")


def _pytest(*command: str, **environment: str) -> dict[str, Any]:
    # Other versions than the tested ones may warn of other things, and lack pytest's plugins.
    plain = ("-q", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "filterwarnings=default")
    ran = subprocess.run([*command, *plain], capture_output=True, text=True, env={**os.environ, **environment})
    return {"exit_code": ran.returncode, "output": (ran.stdout + ran.stderr).splitlines()[-60:]}


def operators() -> dict[str, Any]:
    """Time scan and convolution."""
    from mabert.bench.gpu.operators import measure

    return measure()


def forwards() -> dict[str, Any]:
    """Time forwards of whole models."""
    from mabert.bench.gpu.models import measure_forwards

    return measure_forwards()


def training() -> dict[str, Any]:
    """Time training steps, and take one apart."""
    from mabert.bench.gpu.models import measure_parts, measure_training

    return {**measure_training(), "parts": measure_parts()}


def uneven() -> dict[str, Any]:
    """Time texts of uneven length, unpadded and padded."""
    from mabert.bench.gpu.models import measure_lengths

    return measure_lengths()


def rivals_memory() -> dict[str, Any]:
    """Measure peak memory of all seven encoders."""
    return _rivals("memory")


def rivals_latency() -> dict[str, Any]:
    """Measure latency of all seven encoders."""
    return _rivals("latency")


def rivals_training() -> dict[str, Any]:
    """Measure training steps of all seven encoders."""
    return _rivals("training")


def _rivals(measure: str) -> dict[str, Any]:
    from mabert.bench.models import Plan, run
    from mabert.bench.turns import Protocol

    # The limit leaves room for the first call, which compiles.
    protocol = Protocol(warm=5, most=30, warm_seconds=1.0, budget=2.0, limit=90.0)
    lengths = (512, 4096, 16384) if measure == "training" else (512, 2048, 4096, 16384, 65536)
    return run(Plan(measures=(measure,), device="cuda", lengths=lengths, protocol=protocol))


def many_texts() -> dict[str, Any]:
    """Measure tokens a second over many texts, all seven encoders at their best batch."""
    from mabert.bench.throughput import run

    return run(device="cuda", times=16)


def compiled_forwards() -> dict[str, Any]:
    """Time compiled forwards."""
    from mabert.bench.gpu.models import measure_forwards

    return measure_forwards(compiled=True)


def compiled_training() -> dict[str, Any]:
    """Time compiled training steps."""
    from mabert.bench.gpu.models import measure_training

    return measure_training(compiled=True)


STEPS: dict[str, Callable[[], dict[str, Any]]] = {
    step.__name__: step
    for step in (
        tests,
        sanitizer,
        operators,
        training,
        forwards,
        uneven,
        rivals_memory,
        rivals_latency,
        rivals_training,
        many_texts,
        compiled_training,
        compiled_forwards,
    )
}


def main() -> int:
    """Run what is missing; return 1 where a step failed."""
    reader = argparse.ArgumentParser(prog="python -m mabert.bench.gpu", description=__doc__)
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
    result = {"environment": measured_on(), "step": step, "sources": sources(), **STEPS[step]()}
    path = write(result, output, f"gpu-{step}")
    if result.get("exit_code"):
        path.rename(path.with_suffix(".failed.json"))
        sys.stdout.write("\n".join(result["output"]) + "\n")
        raise SystemExit(1)


def _run(step: str, output: Path) -> bool:
    if _is_done(step, output):
        sys.stdout.write(f"{step}: done before\n")
        return True
    sys.stdout.write(f"{step} ...\n")
    sys.stdout.flush()
    started = time.monotonic()
    command = [sys.executable, "-m", "mabert.bench.gpu", "--here", step, "-o", str(output)]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            # With all it started: a test that goes on would be timed with what comes next.
            os.killpg(process.pid, signal.SIGKILL)
            code = -1
    outcome = "done" if code == 0 else "out of time" if code == -1 else f"exit code {code}"
    sys.stdout.write(f"{step}: {outcome} after {time.monotonic() - started:.0f} s\n")
    return code == 0


def sources() -> str:
    """Return a checksum of package and GPU tests: a copy without its history has no commit to be known by."""
    files = sorted([*Path(mabert.__file__).parent.rglob("*.py"), *Path("tests").rglob("*.py")])
    return f"{zlib.crc32(b''.join(file.read_bytes() for file in files)):08x}"


def _is_done(step: str, output: Path) -> bool:
    """Tell whether the folder holds this step's result of these sources and versions on this GPU."""
    here = (sources(), torch.cuda.get_device_name(), installed("torch"), installed("triton"))
    for path in output.glob(f"*-gpu-{step}.json"):
        there = json.loads(path.read_text(encoding="utf-8"))
        packages = there["environment"]["packages"]
        known = (there["sources"], there["environment"]["device"], packages["torch"], packages["triton"])
        if known == here and "skipped" not in there:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
