"""Threads and processes: they change how long a call takes, and nothing else."""

import copy
import logging
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numba
import pytest
import torch
from numba import njit

from mabert.ops import softmax_attention
from mabert.ops.cpu import kernel, plan, team
from mabert.ops.cpu.kernel import Kernel
from mabert.ops.cpu.team import share
from tests.ops.cases import PLAIN, Case, plain_convolution
from tests.patience import HANG

CASES = {
    "scan of more than a megabyte": PLAIN["scan"](1, 1100, 260),
    "scan": PLAIN["scan"](2, 150, 130, 16),
    "convolution": PLAIN["convolution"](2, 300, 130),
    "packed scan": PLAIN["scan"](1, 600, 70).with_options(cu_seqlens=torch.tensor([0, 290, 290, 600]).int()),
}


def _everything(case: Case) -> list[torch.Tensor]:
    return list(case.run_with_gradients(torch.ones_like(case.inputs["u"])).values())


def _all_equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bits_do_not_depend_on_the_number_of_threads_or_on_the_run(case: Case) -> None:
    torch.set_num_threads(1)
    expected = _everything(case)
    for threads in (1, 2, 3, 7, 7):
        torch.set_num_threads(threads)
        assert _all_equal(_everything(case), expected)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_several_python_threads_may_call_at_once(case: Case) -> None:
    torch.set_num_threads(3)
    expected = _everything(case)
    with ThreadPoolExecutor(4) as executor:
        results = list(executor.map(lambda _: _everything(case), range(12)))
    assert all(_all_equal(result, expected) for result in results)


def _compute_in_child(case: Case) -> list[bytes]:
    torch.set_num_threads(3)
    return [tensor.numpy().tobytes() for tensor in _everything(case)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_computes_too() -> None:
    # Small enough for torch's own operations to stay on one thread: OpenMP does not survive a fork.
    case = PLAIN["scan"](2, 150, 70)
    expected = _compute_in_child(case)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(_compute_in_child, (case,)).get(HANG) == expected


_FIRST_USE = """
import torch
from mabert.ops.cpu import kernel, plan
kernel._NOTICEABLE = 0.0
assert torch.equal(plan.sum_parts(torch.ones(2, 3)), torch.full((3,), 2.0))
"""


@pytest.mark.slow
def test_first_use_by_several_processes_at_once_tells_of_compiling_and_fills_the_cache(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-c", _FIRST_USE]
    processes = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = []
    for process in processes:
        errors = process.communicate(timeout=HANG)[1]
        assert process.returncode == 0, errors
        told.append(errors.count("compiling the CPU kernels on their first use"))
        assert told[-1] == errors.count("compiled _sum_parts in"), errors
    # One that starts late on a busy machine finds what the other has compiled.
    assert sorted(told) in ([0, 1], [1, 1])
    assert list(tmp_path.rglob("*.nb[ci]"))


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[Kernel | None], list[str]]:
    """Sums by a kernel in the place of `_sum_parts`, by default one that is compiled anew; gives what is told of it."""

    def sums(kernel: Kernel | None = None) -> list[str]:
        monkeypatch.setattr(plan, "_sum_parts", kernel or Kernel(plan._sum_parts._function))
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert torch.equal(plan.sum_parts(torch.ones(3, 1030)), torch.full((1030,), 3.0))
        return [record.getMessage() for record in caplog.records]

    return sums


FULL_DISK = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("failing", "told"),
    [
        (Mock(side_effect=RuntimeError("no locator available")), "no locator available"),
        (lambda function: Mock(side_effect=FULL_DISK), "[Errno 28] No space left on device"),
    ],
    ids=["no place", "full disk"],
)
def test_kernels_run_where_the_cache_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, sums: Any, failing: Any, told: str
) -> None:
    def no_cache(*args: Any, **options: Any) -> Any:
        return failing if options.get("cache") else njit(*args, **options)

    monkeypatch.setattr(kernel, "njit", no_cache)
    assert any(f"cannot be kept on disk ({told})" in message for message in sums())


def test_compiling_is_told_of_and_reading_the_cache_is_not(
    monkeypatch: pytest.MonkeyPatch, sums: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel, "_NOTICEABLE", 0.0)  # on a busy machine reading the cache takes long
    monkeypatch.setattr(kernel.Notice, "_told", False)
    compiled = Kernel(plan._sum_parts._function)
    read = copy.copy(compiled)
    begun, done = sums(compiled)
    assert begun.startswith("compiling the CPU kernels")
    assert done.startswith("compiled _sum_parts in")
    assert sums(read) == []


@njit
def _fail(number: int, scratch: int, at: int) -> None:
    if number >= at:
        raise ValueError


def _failing(call: int, *args: Any) -> None:
    share(_fail, call, args)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_in_a_job_reaches_the_caller(threads: int) -> None:
    torch.set_num_threads(threads)
    failing = Kernel(_failing)
    failing.run(5, 64, 5)
    with pytest.raises(RuntimeError, match="a CPU kernel failed"):
        failing.run(5, 64, 3)
    assert torch.equal(plain_convolution().run(), plain_convolution().run())


def test_without_an_openmp_of_torchs_one_thread_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(3)
    case = CASES["scan"]
    expected = _everything(case)
    monkeypatch.setattr(team, "_fork", 0)
    assert _all_equal(_everything(case), expected)


def _everything_or_attention(name: str) -> list[torch.Tensor]:
    if name in CASES:
        return _everything(CASES[name])
    if name == "attention":
        heads, window, shape = 2, None, (3, 2, 130, 128)
    else:  # a later job packs some of the keys alone: enough jobs for every thread to begin with such a one
        heads, window, shape = 1, 200, (3, 1, 6000, 64)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return [softmax_attention(*values.to(dtype), heads, window=window) for dtype in (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize("name", [*CASES, "attention", "attention within a window"])
def test_what_stands_in_fresh_memory_does_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(3)
    expected = _everything_or_attention(name)
    empty, new_empty = torch.empty, torch.Tensor.new_empty

    def poisoned(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(torch.uint8).fill_(0xFF).view(tensor.dtype)  # the bits of a NaN

    monkeypatch.setattr(torch, "empty", lambda *shape, **options: poisoned(empty(*shape, **options)))
    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda tensor, *shape, **options: poisoned(new_empty(tensor, *shape, **options))
    )
    assert _all_equal(_everything_or_attention(name), expected)


_IN_BF16 = """
import torch
from mabert.ops import selective_scan, softmax_attention
torch.manual_seed(0)
values = torch.randn(3, 1, 40, 64).bfloat16()
outputs = [softmax_attention(*values, 2)]
outputs.append(selective_scan(values[0], values[1], -torch.ones(64, 4), values[0, ..., :4], values[1, ..., :4]))
"""


@pytest.mark.slow
def test_a_processor_without_bfloat16_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "outputs.pt"
    target = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    there = f"{_IN_BF16}from mabert.ops.cpu.simd import HAS_BF16\nassert not HAS_BF16\ntorch.save(outputs, r'{path}')"
    subprocess.run([sys.executable, "-c", there], env={**os.environ, **target}, check=True)
    here: dict[str, Any] = {}
    exec(_IN_BF16, here)
    torch.testing.assert_close(torch.load(path, weights_only=True), here["outputs"], rtol=2**-7, atol=2**-7)
