"""Compiled CPU kernels, float32 and bfloat16: the scan and the convolution with their backwards, attention without."""

from mabert.ops.cpu.attention import attention
from mabert.ops.cpu.conv import conv_backward, conv_forward
from mabert.ops.cpu.scan_backward import scan_backward
from mabert.ops.cpu.scan_forward import scan_forward

__all__ = ["attention", "conv_backward", "conv_forward", "scan_backward", "scan_forward"]
