"""The machine: processor, memory, processes and signals, precision, progress and timing."""

from typing import Literal

Precision = Literal["auto", "fp32", "bf16"]
"""Precisions to compute in, see `mabert.machine.environment`."""
