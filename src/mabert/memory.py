"""Running out of memory, by whatever name it comes."""

import torch

_WORDS = (
    "can't allocate memory",
    "out of memory",
    "cannot allocate memory",
    "not enough memory",
    "alloc_failed",
    "bad_alloc",
)


def is_want_of_memory(error: BaseException) -> bool:
    """Whether something failed for want of memory; drivers and libraries of kernels have words of their own for it."""
    named = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return named or any(word in str(error).lower() for word in _WORDS)
