"""The GPU kernels compile, to machine code of a Hopper GPU, on a machine without one.

The interpreter runs what no compiler would take; this finds it. Beside that it holds what speed stands on: the states
of the forward stay in registers.
"""

import itertools
import re
import subprocess
from pathlib import Path

import pytest

from mabert.ops.backends import interprets_triton

triton = pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(interprets_triton(), reason="interpreted kernels are not compiled")]
HOPPER = ("cuda", 90, 32)
REGISTERS_A_PROCESSOR = 65536
FLAGS = {"SOFTPLUS": True, "REVERSE": True}
READING = {"STEPS": 4, "AHEAD": 2}
INPUTS = {"u": "bf16", "delta": "bf16", "B": "bf16", "C": "bf16", "z": "bf16", "mask": "u8", "first": "u8"}
PARAMETERS = {"A": "fp32", "D": "fp32", "bias": "fp32"}
PARTS = dict.fromkeys(("dA", "dB", "dC", "dD", "dbias", "carry", "saved"), "fp32")
ENDS = {"ends": "fp32", "durations": "fp32", "broken": "i32"}
CONV = {"u": "bf16", "weight": "bf16", "bias": "bf16", "mask": "u8", "sequence": "i32"}
CONV_FLAGS = {"WIDTH": 4, "BEFORE": 3, "SILU": True, "REVERSE": False, "STEPS": 32, "BLOCK": 64}
KERNELS = {
    "scan_forward": (
        INPUTS | PARAMETERS | {"y": "bf16", "saved": "fp32", "starts": "fp32"},
        FLAGS | READING | {"N": 16, "BLOCK": 32, "SAVED": 16, "B_WIDTH": 4, "C_WIDTH": 4},
        1,
    ),
    "scan_ends": (
        {name: kind for name, kind in INPUTS.items() if name not in ("u", "B", "C")}
        | {"A": "fp32", "bias": "fp32", "source": "bf16", "matrix": "bf16"}
        | ENDS,
        FLAGS | READING | {"N": 16, "BLOCK": 32, "WIDTH": 4, "BACK": True},
        1,
    ),
    "combine": (ENDS | {"A": "fp32", "starts": "fp32"}, {"N": 16, "BLOCK": 32, "SPLITS": 64, "BACK": True}, 4),
    "scan_backward": (
        INPUTS
        | {"B": "fp32", "C": "fp32"}
        | PARAMETERS
        | PARTS
        | {"grad": "bf16", "du": "bf16", "ddelta": "bf16", "dz": "bf16"},
        FLAGS | {"BLOCK": 32, "SAVED": 16},
        1,
    ),
    "turn": (
        {"B": "bf16", "C": "bf16", "mask": "u8", "turned_B": "fp32", "turned_C": "fp32"},
        {"STEPS": 32, "STATES": 16, "REVERSE": True},
        1,
    ),
    "turn_back": (
        {"parts_B": "fp32", "parts_C": "fp32", "mask": "u8", "dB": "bf16", "dC": "bf16"},
        {"STEPS": 32, "STATES": 16, "REVERSE": True},
        1,
    ),
    "conv_forward": (CONV | {"y": "bf16"}, CONV_FLAGS, 4),
    "conv_backward": (
        CONV | {"grad": "bf16", "du": "bf16", "dweight": "fp32", "dbias": "fp32"},
        CONV_FLAGS | {"STEPS": 64, "GROUP": 4},
        1,
    ),
}
OPTIONAL = {
    "scan_forward": ("mask", "first", "z", "D", "bias", "starts", "saved"),
    "scan_ends": ("mask", "first", "z", "bias"),
    "scan_backward": ("mask", "first", "z", "D", "bias"),
    "turn": ("mask",),
    "turn_back": ("mask",),
    "conv_forward": ("mask", "sequence", "bias"),
    "conv_backward": ("mask", "sequence", "bias"),
}
"""Arguments that may be None."""

ALONG_WITH = {"z": ("dz",)}
"""Arguments that are None where another one is."""


def kernel_of(name):
    from mabert.ops.triton import conv_kernels, scan_kernels

    return next(getattr(module, name) for module in (scan_kernels, conv_kernels) if hasattr(module, name))


def specialisations_of(name):
    """What a kernel may be specialised to beside its usual self: each choice at least once, several at a time."""
    pointers, usual, _ = KERNELS[name]
    opposite = {flag: not value for flag, value in usual.items() if isinstance(value, bool)}
    flags = itertools.cycle([{flag: value} for flag, value in opposite.items()] or [{}])
    absent = [
        (each, *(other for other in ALONG_WITH.get(each, ()) if other in pointers)) for each in OPTIONAL.get(name, ())
    ]
    everything = tuple(itertools.chain(*absent))
    in_fp32 = {each: "fp32" if kind == "bf16" else kind for each, kind in pointers.items()}
    parameters_in_bf16 = {each: "bf16" for each in ("D", "bias", "weight") if each in pointers}
    numbers = [each for each in kernel_of(name).arg_names if each not in usual]
    distances = [each for each in numbers if each.endswith(("_time", "_row")) and each != "mask_row"]
    sizes = [each for each in numbers if each in ("channels", "N")]
    yield from ({"absent": each} | next(flags) for each in absent)
    yield {"absent": everything, "aligned": True, "kinds": in_fp32}
    yield {"absent": everything, "wide": distances} | opposite
    yield {"aligned": True, "kinds": in_fp32 | parameters_in_bf16}
    yield {"ones": (*sizes, *distances), "kinds": parameters_in_bf16}
    yield from SIZES.get(name, ())


WINDOWS = ({"WIDTH": 1, "BEFORE": 0}, {"WIDTH": 2, "BEFORE": 0}, {"WIDTH": 7, "BEFORE": 3, "REVERSE": True})
SIZES = {
    "scan_forward": (
        {"N": 1, "B_WIDTH": 0, "C_WIDTH": 0},
        {"N": 2, "B_WIDTH": 1, "C_WIDTH": 0, "absent": ("starts",)},
        {"N": 8, "B_WIDTH": 2, "C_WIDTH": 4},
    ),
    "scan_ends": ({"N": 1, "WIDTH": 0}, {"N": 2, "WIDTH": 1, "BACK": False}),
    "turn": ({"STATES": 1}, {"STATES": 32}),
    "turn_back": ({"STATES": 1}, {"STATES": 32}),
    "combine": ({"N": 1, "SPLITS": 2}, {"N": 17, "SPLITS": 32, "BACK": False}),
    "conv_forward": WINDOWS,
    "conv_backward": WINDOWS,
}
"""Numbers that loops are unrolled by."""

PLAIN = ("mask", "first")
STACK_OF_BACKWARD = 200
TO_THE_END = [
    # As benchmarks run them: bf16, every step counts, all sizes multiples of 16.
    ("scan_forward", {"absent": (*PLAIN, "starts"), "aligned": True, "REVERSE": False}, 0),
    ("scan_ends", {"absent": (*PLAIN, "z"), "aligned": True, "REVERSE": False, "BACK": False}, 0),
    ("scan_backward", {"absent": PLAIN, "aligned": True, "REVERSE": False}, STACK_OF_BACKWARD),
    ("scan_backward", {"absent": PLAIN, "aligned": True}, STACK_OF_BACKWARD),
    ("turn", {"absent": ("mask",), "aligned": True}, None),
    ("turn_back", {"absent": ("mask",), "aligned": True}, None),
    ("combine", {"SPLITS": 32, "aligned": True}, None),
    ("conv_forward", {"absent": ("mask", "sequence"), "aligned": True}, None),
    ("conv_backward", {"absent": ("mask", "sequence"), "aligned": True}, None),
    # With all there is.
    ("scan_forward", {"aligned": True}, 0),
    ("scan_ends", {"aligned": True}, 0),
    *((name, {}, None) for name in KERNELS if name not in ("scan_forward", "scan_ends")),
    # In other numbers, sizes and layouts.
    (
        "scan_forward",
        {"absent": (*PLAIN, "starts"), "aligned": True, "kinds": {"B": "fp32", "C": "fp32"}, "N": 8},
        None,
    ),
    (
        "scan_forward",
        {
            "absent": OPTIONAL["scan_forward"],
            "wide": ("u_row", "delta_row"),
            "SOFTPLUS": False,
            "N": 1,
            "B_WIDTH": 0,
            "C_WIDTH": 0,
        },
        None,
    ),
    ("combine", {"SPLITS": 2, "BACK": False, "ones": ("channels",)}, None),
    ("conv_backward", {"WIDTH": 1, "BEFORE": 0, "ones": ("channels",), "kinds": {"u": "fp32", "du": "fp32"}}, None),
    (
        "conv_backward",
        {"WIDTH": 7, "absent": OPTIONAL["conv_backward"], "SILU": False, "wide": ("u_row", "grad_row")},
        None,
    ),
]
"""Kernels, how they are specialised, and the bytes of registers that may not fit where states stay in registers.

The compiler takes up to half a minute for one, so each is compiled once and has all that is asked of it.
"""


class EnoughError(Exception):
    """Triton's own code of a kernel is there."""


def compiled(name, absent=(), ones=(), wide=(), aligned=False, kinds=None, to_the_end=True, **constants):
    """Compile one specialisation of a kernel.

    Args:
        name: Of the kernel.
        absent: Arguments that are None.
        ones: Numbers that are 1, which Triton takes for constants.
        wide: Numbers of 64 bits.
        aligned: Whether pointers and numbers are known to be multiples of 16, where Triton looks for that.
        kinds: Argument to the kind of its numbers, where it is another one.
        to_the_end: Whether machine code is made of it; else Triton's code alone, in which what a kernel cannot be
            specialised to shows in a tenth of a second.
        **constants: As in `KERNELS`, where they are others.
    """
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.compiler import ASTSource

    from mabert.ops.triton import scan
    from mabert.ops.triton.launch import COMPILATION

    pointers, usual, warps = KERNELS[name]
    limits_of = {"maxnreg": scan.BACKWARD_REGISTERS} if name == "scan_backward" else {}
    kernel = kernel_of(name)
    pointers, constants = pointers | (kinds or {}), usual | constants
    constants |= dict.fromkeys(absent) | dict.fromkeys(ones, 1)
    assert {*pointers, *constants, *wide} <= set(kernel.arg_names)
    signature = {each: "*" + pointers[each] if each in pointers else "i32" for each in kernel.arg_names}
    signature |= dict.fromkeys(wide, "i64") | dict.fromkeys(constants, "constexpr")
    looked_at = [parameter.name for parameter in kernel.params if not parameter.do_not_specialize]
    multiples = [each for each in looked_at if each not in constants] if aligned else []
    attributes = {(kernel.arg_names.index(each),): [["tt.divisibility", 16]] for each in multiples}
    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=attributes)

    def stages(self, stages, options, *more):
        made(self, stages, options, *more)
        stages["ttgir"] = stop

    def stop(*_):
        raise EnoughError

    made = CUDABackend.add_stages
    with pytest.MonkeyPatch.context() as patch:
        if not to_the_end:
            patch.setattr(CUDABackend, "add_stages", stages)
        return triton.compile(
            source, target=GPUTarget(*HOPPER), options={"num_warps": warps, **COMPILATION, **limits_of}
        )


@pytest.mark.parametrize(("name", "how", "spills"), TO_THE_END, ids=str)
def test_a_kernel_compiles_and_states_stay_in_registers(name, how, spills, tmp_path):
    from mabert.ops.triton.scan import WARPS_A_PROCESSOR

    binary = compiled(name, **how).asm["cubin"]
    assert binary[:4] == b"\x7fELF"
    if spills is None:
        return
    (tmp_path / "kernel.cubin").write_bytes(binary)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    usage = subprocess.run([tool, "-res-usage", tmp_path / "kernel.cubin"], capture_output=True, text=True, check=True)
    found = dict(re.findall(r"(REG|STACK|SHARED):(\d+)", usage.stdout + usage.stderr))
    most = REGISTERS_A_PROCESSOR // (32 * WARPS_A_PROCESSOR)
    assert 32 < int(found["REG"]) <= most, "as many warps run at once as the launch counts on"
    assert int(found["STACK"]) <= spills, "bytes of registers that do not fit"
    assert found["SHARED"] == "0", "no thread needs another's numbers of B or C"


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_can_be_specialised_to_whatever_it_is_called_with(name, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # where nothing is compiled yet
    for how in specialisations_of(name):
        with pytest.raises(EnoughError):
            compiled(name, to_the_end=False, **how)
