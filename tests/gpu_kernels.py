"""Compiles what `make gpu` runs for a GPU that is not there: `make gpu-kernels`, or `python -m tests.gpu_kernels`.

A stub driver reports an H100 (sm_90, as an H200). The same calls as there, on CPU tensors, compile every kind of kernel
that they need into TRITON_CACHE_DIR and launch nothing. The cache's keys hash Triton's own files; those of another
Python's Triton, which differs in its library alone, are had by naming the folder that it is installed in.
"""

import hashlib
import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mabert import MaBertConfig, MaBertForMaskedLM, MaBertModel
from mabert.ops import depthwise_conv1d, selective_scan, use_backend
from mabert_lab.bench import operators
from tests.model.helpers import build, config
from tests.model.test_gpu import FIELDS, SIZES
from tests.ops.cases import PLAIN, plain_scan

PROCESSORS = 132
"""Streaming multiprocessors of an H100 and of an H200, by which rows are split."""

WIDTH = {"layer_pattern": "M", "vocab_size": 100, "max_position_embeddings": 16384}
DTYPES = (torch.bfloat16, torch.float32)
TEXTS = [(1, length) for length in (512, 1024, 2048, 4096, 8192, 16384)]
BATCHES = [(65536 // length, length) for _, length in TEXTS]
STEPS = [(32, 512), (16, 1024), (16, 2048), (8, 4096)]


def stub() -> SimpleNamespace:
    """Returns a driver that says which GPU to compile for."""
    from triton.backends.compiler import GPUTarget

    return SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_active_torch_device=lambda: torch.device("cpu"),
    )


def compile_only(patch: pytest.MonkeyPatch) -> list[str]:
    """Makes Triton compile and not launch; returns the list to which kernels' names are added as they are compiled."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from mabert.ops import backends
    from mabert.ops.triton import launch

    made: list[str] = []
    run, compiled = JITFunction.run, JITFunction._do_compile

    def note(kernel: Any, *args: Any, **options: Any) -> Any:
        made.append(kernel.__name__)
        return compiled(kernel, *args, **options)

    driver.set_active(stub())
    patch.setattr(JITFunction, "_do_compile", note)
    patch.setattr(
        JITFunction,
        "run",
        lambda kernel, *args, grid, warmup, **options: run(kernel, *args, grid=grid, warmup=True, **options),
    )
    patch.setattr(backends, "_what_is_missing", lambda *_: "")
    patch.setattr(torch.nn.functional, "linear", shaped_as_product)
    patch.setattr(launch, "_ASSUMED_PROCESSORS", PROCESSORS)
    return made


def shaped_as_product(x: torch.Tensor, weight: torch.Tensor, _: torch.Tensor | None = None) -> torch.Tensor:
    """Takes the place of a layer's product, whose values choose no kernel: the same shape and dtype, with gradients."""
    made = x[..., :1] * weight[:, 0]
    return made.to(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype)


def take_keys_of(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Gives the cache the keys of the Triton in a folder, of the same version for another Python."""
    import triton
    from triton.runtime import cache

    here, there = (
        hashlib.sha256((root / "_C/libtriton.so").read_bytes()).hexdigest()
        for root in (Path(triton.__file__).parent, folder / "triton")
    )
    key = cache.triton_key().replace(here, there)
    patch.setattr(cache, "triton_key", lambda: key)


def calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields what `make gpu` runs, by title, in its order: the tests that matter, models, training, operators."""
    for (batch, length), dtype in ((shape, dtype) for shape in ((1, 70), (2, 400)) for dtype in DTYPES):
        for function, make in ((selective_scan, operators.scan_inputs), (depthwise_conv1d, operators.conv_inputs)):
            inputs = operators._laid_out(make(length, dtype, channels=70), batch, "cpu")
            yield "the check before timings", partial(operators._with_gradients, function, inputs)
    for plain in PLAIN.values():
        shapes = [(1, 4096, 1536, dtype) for dtype in DTYPES] + [(3, 517, 1536, dtype) for dtype in DTYPES]
        for *shape, dtype in [*shapes, (2, 1000, 300, torch.float32)]:
            state = 16 if plain is plain_scan and shape[0] != 2 else 4
            case = plain(*shape, state).over_time(lambda tensor, dtype=dtype: tensor.to(dtype))
            yield "tests of real sizes", partial(case.run_with_gradients, torch.ones_like(case.inputs["u"]), "triton")
    for unpad in ("auto", "never"):
        small = {**SIZES, **FIELDS, "layer_pattern": "M", "unpad": unpad}
        for dtype in DTYPES:
            for lengths in ((1, 17, 300, 512), (1,), (17,), (300,), (512,)):
                yield "tests of a model", partial(infer, config(**small), lengths, dtype)
        yield "tests of a model", partial(train, config(**small), (1, 17, 300, 512), torch.float32)
    for title, shapes in (("one text", TEXTS), ("batches", BATCHES)):
        for rows, length in shapes:
            yield f"{title}, {rows} x {length:,}", partial(infer, MaBertConfig(**WIDTH), (length,) * rows)
    for rows, length in STEPS:
        yield f"training, {rows} x {length:,}", partial(train, MaBertConfig(**WIDTH), (length,) * rows)
    for dtype, (batch, length) in ((dtype, shape) for dtype in DTYPES for shape in operators.GPU_SHAPES):
        for function, make in ((selective_scan, operators.scan_inputs), (depthwise_conv1d, operators.conv_inputs)):
            inputs = operators._laid_out(make(64, dtype), batch, "cpu")
            long = {
                name: tensor.new_zeros(batch, length, tensor.shape[2]) if tensor.dim() == 3 else tensor
                for name, tensor in inputs.items()
            }
            for task in operators.PASSES:
                yield f"operators, {batch} x {length:,}", operators.task_of(function, long, task)
    for unpad in ("auto", "never"):
        lengths = (300, 256, 201, 280)
        yield "uneven texts", partial(infer, MaBertConfig(**WIDTH, unpad=unpad), lengths)


def inputs_of(lengths: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Makes a batch of texts, with a mask if their lengths differ."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    ids = torch.full(mask.shape, 9)
    return {"input_ids": ids} if mask.all() else {"input_ids": ids, "attention_mask": mask.long()}


@torch.inference_mode()
def infer(sizes: MaBertConfig, lengths: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> None:
    """Runs an encoder's forward."""
    build(MaBertModel, sizes, dtype=dtype).eval()(**inputs_of(lengths))


def train(sizes: MaBertConfig, lengths: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
    """Runs a training step's forward and backward, by autocast."""
    inputs = inputs_of(lengths)
    model = build(MaBertForMaskedLM, sizes, dtype=dtype).train()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**inputs, labels=inputs["input_ids"]).loss
    loss.backward()


def strip(cache: Path) -> int:
    """Deletes what a GPU's run does not read, so that the folder is small; returns the bytes that stay."""
    for file in cache.glob("*/*"):
        if file.suffix not in (".json", ".cubin"):
            file.unlink()
    return sum(file.stat().st_size for file in cache.glob("*/*"))


def work(part: int, parts: int, others: list[str]) -> None:
    """Compiles every so-many-th call's kinds."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for there in others:
            take_keys_of(Path(there), patch)
        made = compile_only(patch)
        with use_backend("triton"):
            for title, call in itertools.islice(calls(), part, None, parts):
                before, began = len(made), time.monotonic()
                call()
                if len(made) > before:
                    sys.stdout.write(f"{title}: {', '.join(made[before:])}, {time.monotonic() - began:.1f} s\n")
                    sys.stdout.flush()


def main() -> int:
    """Compiles all; the cache's folder must be relative, since its files name each other by path."""
    from triton import knobs

    folder = Path(knobs.cache.dir)
    if folder.is_absolute():
        sys.stderr.write(f"TRITON_CACHE_DIR is {folder}; it must be relative to the project's root: build/triton\n")
        return 2
    parts = os.cpu_count() or 1
    forked = multiprocessing.get_context("fork")
    workers = [forked.Process(target=work, args=(part, parts, sys.argv[1:])) for part in range(parts)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.stdout.write(f"{folder}: {len(list(folder.glob('*/*.cubin')))} kinds, {strip(folder) / 2**20:.1f} MiB\n")
    return int(any(worker.exitcode for worker in workers))


if __name__ == "__main__":
    sys.exit(main())
