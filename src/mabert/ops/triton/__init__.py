"""The operators on a GPU, as Triton kernels: masks, packed sequences, both directions, forward and backward."""

from mabert.ops.triton.conv import conv_backward, conv_forward
from mabert.ops.triton.scan import scan_backward, scan_forward

__all__ = ["conv_backward", "conv_forward", "scan_backward", "scan_forward"]
