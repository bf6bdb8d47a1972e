"""Batches of like length, so that little of them is padding."""

from collections.abc import Sequence

TOKENS_A_BATCH = 8192
"""Padded tokens a batch holds at most, unless one text alone is longer."""


def batches_by_length(lengths: Sequence[int], tokens: int = TOKENS_A_BATCH) -> list[list[int]]:
    """Groups texts of like length.

    Args:
        lengths: tokens of each text.
        tokens: padded tokens of a batch at most; a text that is longer gets a batch of its own.

    Returns:
        Indices, a list a batch, longest texts first, so that memory is at its height at the beginning.

    Raises:
        ValueError: `tokens` is below 1.
    """
    if tokens < 1:
        raise ValueError(f"a batch of {tokens} tokens holds nothing; at least 1 is needed")
    batches: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda text: -lengths[text]):
        if room == 0:
            batches.append([])
            room = max(1, tokens // max(1, lengths[index]))
        batches[-1].append(index)
        room -= 1
    return batches
