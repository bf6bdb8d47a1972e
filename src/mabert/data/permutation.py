"""Random orders that are computed, not stored: the same on every machine, in any process, for any subset of indices."""

from __future__ import annotations

import numpy as np

_WORD = 0xFFFFFFFFFFFFFFFF
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ROUNDS = 8
# Below eight bits a Feistel network reaches too few of all orders; walking further costs small sizes next to nothing.
_LEAST_HALF = 4


def mix64(values: np.ndarray, seed: int) -> np.ndarray:
    """A 64-bit hash of each value under a seed (the finaliser of SplitMix64, twice).

    Args:
        values: uint64, any shape.
        seed: any integer; taken modulo 2^64.

    Returns:
        uint64 of the same shape; a bijection of the values for every seed.
    """
    key = np.uint64(_mix(seed & _WORD))
    with np.errstate(over="ignore"):
        mixed = _mix_array(values.astype(np.uint64) ^ key)
        return _mix_array(mixed + np.uint64(_GOLDEN))


class Permutation:
    """A seeded permutation of `0 .. size - 1` that needs no memory.

    A balanced Feistel network over the smallest even number of bits that holds `size`, walked along its cycle until it
    lands inside the range (fewer than four steps on average beyond 64 values).

    Args:
        size: how many values, at least 1.
        keys: integers that choose the permutation, such as seed, stage and epoch.
    """

    def __init__(self, size: int, *keys: int) -> None:
        if size < 1:
            raise ValueError(f"a permutation needs at least one value, not {size}")
        self.size = size
        self._half = max(_LEAST_HALF, ((size - 1).bit_length() + 1) // 2)
        state = _mix(size)
        for key in keys:
            state = _mix((state + key) & _WORD)
        self._round_keys = [_mix((state + i * _GOLDEN) & _WORD) for i in range(1, _ROUNDS + 1)]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        """The value at a position."""
        if not 0 <= index < self.size:
            raise IndexError(f"position {index} of a permutation of {self.size} values")
        value = self._step(index)
        while value >= self.size:
            value = self._step(value)
        return value

    def order(self) -> np.ndarray:
        """All values in order, int64 (size,): the same as one by one, some hundred times as fast."""
        values = self._steps(np.arange(self.size, dtype=np.uint64))
        while (outside := values >= self.size).any():
            values[outside] = self._steps(values[outside])
        return values.astype(np.int64)

    def _steps(self, values: np.ndarray) -> np.ndarray:
        half, mask = np.uint64(self._half), np.uint64((1 << self._half) - 1)
        left, right = values >> half, values & mask
        for key in self._round_keys:
            hashed = _mix_array((right ^ np.uint64(key)) + np.uint64(_GOLDEN))
            left, right = right, left ^ (hashed & mask)
        return left << half | right

    def _step(self, value: int) -> int:
        half, mask = self._half, (1 << self._half) - 1
        left, right = value >> half, value & mask
        for key in self._round_keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        return left << half | right


def _mix(value: int) -> int:
    value = (value + _GOLDEN) & _WORD
    value = ((value ^ (value >> 30)) * _FIRST) & _WORD
    value = ((value ^ (value >> 27)) * _SECOND) & _WORD
    return value ^ (value >> 31)


def _mix_array(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FIRST)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_SECOND)
    return values ^ (values >> np.uint64(31))
