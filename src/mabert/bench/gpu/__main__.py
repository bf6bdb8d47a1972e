"""`python -m mabert.bench.gpu`: every step that has no result of this commit and GPU in the folder yet.

Runs from the sources (``PYTHONPATH=src``) with whatever versions are there. Each step is a process of its own with a
time limit, so that one that fails or hangs costs neither the others nor what they left. Steps that measure all seven
encoders leave what they have in ``*.partial.json`` as they go.
"""

import argparse
import functools
import importlib.util
import itertools
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

LENGTHS = {"best": (128, 512, 1024, 2048, 4096, 8192, 16384, 65536), "paper": (128, 512, 1024, 2048, 4096)}
TRAINED_LENGTHS = {"best": (512, 4096, 16384), "paper": (512, 4096)}
"""Tokens at which all seven encoders are measured, by profile."""

RIVALS = tuple(itertools.product(LENGTHS, ("latency", "memory", "training")))
"""Steps that measure all seven: profile and measure."""

_OPERATOR_TESTS, _MODEL_TESTS = "tests/ops/test_triton.py", "tests/model/test_gpu.py"


def tests(output: Path) -> dict[str, Any]:
    """Run the GPU tests of operators and model, side by side where pytest can."""
    spread = ("-n", "8") if importlib.util.find_spec("xdist") else ()
    return _pytest(output / "gpu-tests.log", sys.executable, "-m", "pytest", _OPERATOR_TESTS, _MODEL_TESTS, *spread)


def sanitizer(output: Path) -> dict[str, Any]:
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
    return _pytest(output / "gpu-sanitizer.log", *command, PYTORCH_NO_CUDA_MEMORY_CACHING="1")


def _pytest(log: Path, *command: str, **environment: str) -> dict[str, Any]:
    """Run tests; what they print stands in a file from the first line on, in case their time ends before they do."""
    # Other versions than the tested ones may warn of other things, and lack pytest's plugins.
    plain = ("-v", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "filterwarnings=default")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as lines:
        ran = subprocess.run(
            [*command, *plain], stdout=lines, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
    return {"exit_code": ran.returncode, "output": log.read_text(encoding="utf-8").splitlines()[-60:]}


def operators(_: Path) -> dict[str, Any]:
    """Time scan and convolution."""
    from mabert.bench.gpu.operators import measure

    return measure()


def forwards(output: Path) -> dict[str, Any]:
    """Time forwards of whole models."""
    from mabert.bench.gpu.models import measure_forwards

    return measure_forwards(_keeping("forwards", output))


def training(output: Path) -> dict[str, Any]:
    """Time training steps, and take one apart."""
    from mabert.bench.gpu.models import measure_parts, measure_training

    return {**measure_training(_keeping("training", output)), "parts": measure_parts()}


def uneven(output: Path) -> dict[str, Any]:
    """Time texts of uneven length, unpadded and padded."""
    from mabert.bench.gpu.models import measure_lengths

    return measure_lengths(_keeping("uneven", output))


def _keeping(step: str, output: Path) -> Callable[[dict[str, Any]], None]:
    """What writes the results that a step has so far."""
    begun = measured_on()

    def keep(result: dict[str, Any]) -> None:
        write({"environment": begun, "step": step, **result}, output, f"gpu-{step}.partial")

    return keep


def rivals(profile: str, measure: str, output: Path) -> dict[str, Any]:
    """Measure all seven encoders; in the paper's settings at the paper's lengths."""
    from mabert.bench.models import Plan, run
    from mabert.bench.turns import Protocol

    # The limit leaves room for the first call, which compiles.
    protocol = Protocol(warm_seconds=1.0, budget=2.0, limit=90.0)
    lengths = LENGTHS[profile] if measure != "training" else TRAINED_LENGTHS[profile]
    plan = Plan(
        measures=(measure,),
        profiles=(profile,),
        dtypes=("bfloat16",),
        lengths=lengths,
        device="cuda",
        protocol=protocol,
    )
    return run(plan, output=output, name=f"gpu-{profile}_{measure}.partial")


def many_texts(output: Path) -> dict[str, Any]:
    """Measure tokens a second over many texts, all seven encoders at their best batch."""
    from mabert.bench.throughput import run

    return run(device="cuda", times=16, output=output, name="gpu-many_texts.partial")


def compiled_forwards(output: Path) -> dict[str, Any]:
    """Time compiled forwards."""
    from mabert.bench.gpu.models import measure_forwards

    return measure_forwards(_keeping("compiled_forwards", output), compiled=True)


def compiled_training(output: Path) -> dict[str, Any]:
    """Time compiled training steps."""
    from mabert.bench.gpu.models import measure_training

    return measure_training(_keeping("compiled_training", output), compiled=True)


Step = Callable[[Path], dict[str, Any]]
"""What a step runs, given the folder of results; it returns its own."""

STEPS: dict[str, Step] = {
    "tests": tests,
    "sanitizer": sanitizer,
    "operators": operators,
    "training": training,
    "forwards": forwards,
    "uneven": uneven,
    **{f"{profile}_{measure}": functools.partial(rivals, profile, measure) for profile, measure in RIVALS},
    "many_texts": many_texts,
    "compiled_training": compiled_training,
    "compiled_forwards": compiled_forwards,
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
    before = set(output.glob(f"*-gpu-{step}.partial.json"))  # of other machines, commits and tries
    result = {"environment": measured_on(), "step": step, "sources": sources(), **STEPS[step](output)}
    path = write(result, output, f"gpu-{step}")
    for partial in set(output.glob(f"*-gpu-{step}.partial.json")) - before:
        partial.unlink()
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
    # Two sides that each fill the memory take turns: what one has freed must serve the other.
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **os.environ}
    with subprocess.Popen(command, start_new_session=True, env=environment) as process:
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
