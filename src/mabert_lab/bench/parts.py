"""Profiles one forward pass of MaBERT-base by part, against the minimum time (floor) of each part on this machine.

A floor is operations over the measured matrix rate (matrix products, attention) or bytes over the measured copy rate
(all other parts, which read their inputs and write their outputs once). A part that also computes may lie far above its
floor of bytes: the scan needs an exponential for every channel, state and step.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from torch.profiler import ProfilerActivity, profile

from mabert.machine.rounds import interleave
from mabert.model import MaBertConfig
from mabert_lab.bench.engines import contender
from mabert_lab.bench.limits import copy_rate, matrix_rate
from mabert_lab.bench.profiles import DTYPES, Cell
from mabert_lab.bench.results import measured_on, record, table
from mabert_lab.bench.tasks import Forward

LENGTHS = (512, 4096)
PRODUCTS = "matrix products"
REST = "everything else"
PARTS = {
    "aten::linear": PRODUCTS,
    "mkldnn::_linear_pointwise": PRODUCTS,  # prepacked weights
    "aten::scaled_dot_product_attention": "attention",
    "mabert::softmax_attention": "attention",
    "mabert::selective_scan": "scan",
    "mabert::depthwise_conv1d": "convolution",
    "aten::layer_norm": "norms",
    "aten::gelu": "activation",  # part of the product with prepacked weights
}
_ROUNDS = 7


def floors(config: MaBertConfig, length: int, size: int, matrix: float, copy: float) -> dict[str, float]:
    """Computes the floor in milliseconds of each part of a forward pass at batch 1.

    Args:
        config: The model.
        length: Tokens.
        size: Bytes per number.
        matrix: Operations per second of matrix products, see `mabert_lab.bench.limits`.
        copy: Bytes per second, read and written together.

    Returns:
        Milliseconds by part; `REST` is the residual additions.
    """
    width, inner, channels = config.hidden_size, config.intermediate_size, config.ssm_inner_size
    rank, state = config.ssm_dt_rank, config.ssm_state_size
    assert rank is not None
    layers = len(config.layer_pattern)
    mamba, attention = config.layer_pattern.count("M"), config.layer_pattern.count("T")
    weights = 2 * layers * width * inner + 4 * attention * width * width
    weights += mamba * (3 * width * channels + channels * (rank + 2 * state) + rank * channels)
    operations = {PRODUCTS: 2 * length * weights, "attention": 4 * attention * length * length * width}
    numbers = {
        "scan": mamba * length * (4 * channels + 2 * state),
        "convolution": mamba * 2 * length * channels,
        "norms": (2 * layers + 2) * 2 * length * width,
        "activation": layers * 2 * length * inner,
        REST: 2 * layers * 3 * length * width,
    }
    least = {part: 1e3 * count / matrix for part, count in operations.items()}
    return least | {part: 1e3 * count * size / copy for part, count in numbers.items()}


def measure(length: int, dtype: str, rounds: int = _ROUNDS, small: bool = False) -> dict[str, float]:
    """Profiles a few forward passes of so many tokens; returns median milliseconds by part, and the time without
    profiler as ``whole``."""
    forward = Forward(contender("mabert"), Cell("latency", "best", dtype, length, small=small))
    runs: list[dict[str, list[float]]] = []
    calls = {"whole": forward.run, "profiled": lambda: runs.append(profiled(forward.run))}
    whole = interleave(calls, least=rounds, most=rounds, budget=0.0)["whole"].median_ms
    return {"whole": whole} | {part: statistics.median(sum(run[part]) for run in runs[1:]) for part in runs[0]}


def profiled(forward: Callable[[], object]) -> dict[str, list[float]]:
    """Profiles one forward pass; returns the milliseconds of each part's calls in order, and `REST` as one call."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        started = time.perf_counter()
        forward()
        whole = 1e3 * (time.perf_counter() - started)
    parts: dict[str, list[float]] = {part: [] for part in PARTS.values()}
    for event in profiler.events():
        if event.name in PARTS:
            parts[PARTS[event.name]].append(event.cpu_time_total / 1e3)
    return {**parts, REST: [whole - sum(map(sum, parts.values()))]}


def run(quick: bool = False, output: Path | None = None) -> dict[str, Any]:
    """Measures the parts at both lengths in both dtypes; see `mabert_lab.bench.results`.

    Returns:
        ``environment``, ``rates`` (operations and bytes per second) and ``tables``: length, dtype, ``measured_ms`` and
        ``floor_ms`` by part.
    """
    rates = {name: matrix_rate(dtype) for name, dtype in DTYPES.items()} | {"copy": copy_rate()}
    result: dict[str, Any] = {"environment": measured_on(), "quick": quick, "rates": rates, "tables": []}

    def job(length: int, name: str) -> None:
        measured = measure(length, name, 1 if quick else _ROUNDS)
        least = floors(MaBertConfig(), length, DTYPES[name].itemsize, rates[name], rates["copy"])
        result["tables"].append({"length": length, "dtype": name, "measured_ms": measured, "floor_ms": least})

    kinds = itertools.product(DTYPES, (64,) if quick else LENGTHS)
    jobs = {f"{length:,} tokens, {name}": partial(job, length, name) for name, length in kinds}
    return record(result, jobs, show, output, "parts")


def show(console: Console, result: dict[str, Any]) -> None:
    """Prints a table per length and dtype, and the rates."""
    for each in result["tables"]:
        measured, least = each["measured_ms"], each["floor_ms"]
        parts = sum(measured[part] for part in least)
        lines = [
            (
                part,
                f"{measured[part]:,.1f}",
                f"{floor:,.1f}",
                f"{measured[part] / floor:.1f}",
                f"{measured[part] / parts:.0%}",
            )
            for part, floor in least.items()
        ]
        lines.append(("whole", f"{measured['whole']:,.1f}", f"{sum(least.values()):,.1f}", "", ""))
        title = f"MaBERT-base, {each['length']:,} tokens, {each['dtype']}"
        console.print(table(title, ("part",), ("ms", "floor ms", "times floor", "share"), lines))
    rates = result["rates"]
    console.print(
        f"matrix products: {rates['float32'] / 1e9:,.0f} (fp32), {rates['bfloat16'] / 1e9:,.0f} (bf16) "
        f"G operations/s; copy: {rates['copy'] / 1e9:,.0f} GB/s"
    )
