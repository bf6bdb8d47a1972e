"""Running out of memory, by whatever name it comes."""

import contextlib
from collections.abc import Callable, Iterator

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


class OutOfMemoryError(MemoryError):
    """A batch does not fit the memory; says where, how many rows it has, and what helps."""


@contextlib.contextmanager
def naming_memory(where: Callable[[], str]) -> Iterator[None]:
    """Turns running out of memory into an OutOfMemoryError; other errors stay as they are.

    Args:
        where: Called when it happens; what follows "out of memory" in the message.
    """
    try:
        yield
    except OutOfMemoryError:
        raise
    except (MemoryError, RuntimeError) as error:
        if not is_want_of_memory(error):
            raise
        raise OutOfMemoryError(f"out of memory {where()}") from error
