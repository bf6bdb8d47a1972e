"""Compiled CPU kernels of both operators, forward and backward, float32 and bfloat16."""

from mabert.ops.cpu.conv import conv_backward, conv_forward
from mabert.ops.cpu.scan_backward import scan_backward
from mabert.ops.cpu.scan_forward import scan_forward

__all__ = ["conv_backward", "conv_forward", "scan_backward", "scan_forward"]
