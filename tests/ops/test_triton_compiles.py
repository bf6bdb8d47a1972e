"""The GPU kernels compile, to machine code of a Hopper GPU, on a machine without one.

The interpreter runs what no compiler would take; this finds it. Beside that it holds what speed stands on: the states
of the forward stay in registers.
"""

import re
import subprocess
from pathlib import Path

import pytest

from mabert.ops.backends import interprets_triton

triton = pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(interprets_triton(), reason="interpreted kernels are not compiled"),
]
HOPPER = ("cuda", 90, 32)
FLAGS = {"SOFTPLUS": True, "FULL": False, "REVERSE": True}
INPUTS = {"u": "bf16", "delta": "bf16", "B": "fp32", "C": "fp32", "z": "bf16", "mask": "u8", "first": "u8"}
PARAMETERS = {"A": "fp32", "D": "fp32", "bias": "fp32"}
PARTS = dict.fromkeys(("dA", "dB", "dC", "dD", "dbias", "carry", "saved"), "fp32")
ENDS = {"ends": "fp32", "durations": "fp32", "broken": "i32"}
CONV = {"u": "bf16", "weight": "bf16", "bias": "bf16", "mask": "u8", "sequence": "i32"}
CONV_FLAGS = {"WIDTH": 4, "BEFORE": 3, "SILU": True, "REVERSE": False, "STEPS": 32, "BLOCK": 64}
KERNELS = {
    "scan_forward": (
        INPUTS | PARAMETERS | {"y": "bf16", "saved": "fp32", "starts": "fp32"},
        FLAGS | {"N": 16, "BLOCK": 64, "STEPS": 4, "CHUNK": 16},
        1,
    ),
    "scan_ends": (
        {name: kind for name, kind in INPUTS.items() if name not in ("u", "B", "C")}
        | {"A": "fp32", "bias": "fp32", "source": "bf16", "matrix": "fp32"}
        | ENDS,
        FLAGS | {"N": 16, "BLOCK": 64, "STEPS": 4, "BACK": True},
        1,
    ),
    "combine": (
        ENDS | {"A": "fp32", "starts": "fp32"},
        {"N": 16, "BLOCK": 32, "SPLITS": 64, "BACK": True},
        4,
    ),
    "scan_backward": (
        INPUTS | PARAMETERS | PARTS | {"grad": "bf16", "du": "bf16", "ddelta": "bf16", "dz": "bf16"},
        FLAGS | {"BLOCK": 32, "CHUNK": 16},
        1,
    ),
    "conv_forward": (CONV | {"y": "bf16"}, CONV_FLAGS, 4),
    "conv_backward": (CONV | {"grad": "bf16", "du": "bf16", "dweight": "fp32", "dbias": "fp32"}, CONV_FLAGS, 4),
}


def compiled(name):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from mabert.ops.triton import conv_kernels, scan_kernels
    from mabert.ops.triton.launch import COMPILATION

    pointers, constants, warps = KERNELS[name]
    kernel = getattr(scan_kernels if hasattr(scan_kernels, name) else conv_kernels, name)
    assert set(pointers) | set(constants) <= set(kernel.arg_names)
    kinds = {argument: "*" + pointers[argument] if argument in pointers else "i32" for argument in kernel.arg_names}
    kinds |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature=kinds, constexprs=constants)
    return triton.compile(source, target=GPUTarget(*HOPPER), options={"num_warps": warps, **COMPILATION})


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_compiles(name):
    assert compiled(name).asm["cubin"][:4] == b"\x7fELF"


def test_the_states_of_the_forward_stay_in_registers(tmp_path):
    (tmp_path / "kernel.cubin").write_bytes(compiled("scan_forward").asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run([tool, "-res-usage", tmp_path / "kernel.cubin"], capture_output=True, text=True, check=True)
    found = dict(re.findall(r"(REG|STACK|SHARED):(\d+)", usage.stdout + usage.stderr))
    assert int(found["REG"]) > 32
    assert found["STACK"] == found["SHARED"] == "0"
