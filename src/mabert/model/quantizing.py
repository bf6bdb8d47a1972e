"""The modules that quantizers leave as they are when their own configuration names none."""

import copy
from typing import Any

UNQUANTIZED = ("pooler", "classifier", "qa_outputs", "decoder")
"""Modules that bitsandbytes, quanto and torchao leave unquantized: they are trained in full beside an adapter."""

NARROW = ("x_proj", "dt_proj")
"""Modules that bitsandbytes and quanto leave unquantized too: the scan carries on errors of the step sizes, B and C
that they make, and 4-bit kernels do not take their widths. torchao's int8 was measured with them quantized
(docs/clients.md)."""


def sparing(asked: Any) -> Any:
    """Returns a quantizer's configuration that skips `UNQUANTIZED` and `NARROW`, unless it names modules to skip."""
    asked = copy.copy(asked)
    for name in ("llm_int8_skip_modules", "modules_to_not_convert"):
        if getattr(asked, name, ()) is None:
            setattr(asked, name, [*UNQUANTIZED, *(NARROW if asked.quant_method != "torchao" else ())])
    return asked
