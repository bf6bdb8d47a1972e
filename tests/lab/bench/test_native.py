"""The yardstick in C++ computes what the operator computes; otherwise its time would say nothing."""

import sys

import pytest
import torch

from mabert.ops import selective_scan
from mabert_lab.bench import native
from mabert_lab.bench.operators import scan_inputs


@pytest.mark.skipif(bool(native.missing()), reason=f"the C++ loop cannot be built: {native.missing()}")
def test_the_loop_is_the_scan_and_loading_it_leaves_subnormal_numbers_alone() -> None:
    inputs = scan_inputs(70, torch.float32, channels=48)
    torch.testing.assert_close(native.scan(**inputs), selective_scan(**inputs), rtol=1e-5, atol=1e-5)
    assert sys.float_info.min / 2 > 0


def test_what_it_was_not_written_for_it_refuses() -> None:
    with pytest.raises(ValueError, match="whole vectors of 16 channels"):
        native.scan(**scan_inputs(5, torch.float32, channels=20))
    with pytest.raises(ValueError, match="contiguous float32"):
        native.scan(**scan_inputs(5, torch.bfloat16, channels=16))
