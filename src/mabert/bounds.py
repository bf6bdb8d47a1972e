"""Ranges of sensible numbers, declared beside each field and option.

A range is part of a field's annotation, `steps: Annotated[int, Range(1, 10**9)]`, which `mabert.train.fields` reads, or
of a table by the field's name.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mabert.files.reading import shown


@dataclass(frozen=True)
class Range:
    """The range of a number, which must be finite in any case.

    Attributes:
        least: Smallest value.
        most: Largest value.
        above: Whether the number must exceed `least`.
        below: Whether the number must be below `most`.
    """

    least: float
    most: float
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        enough = value > self.least if self.above else value >= self.least
        return math.isfinite(value) and enough and (value < self.most if self.below else value <= self.most)

    def __str__(self) -> str:
        # A bound is printed as users write it: 4294967295, not 4.29e+09.
        least, most = (f"{bound}" if isinstance(bound, int) else f"{bound:g}" for bound in (self.least, self.most))
        return f"{'above' if self.above else 'at least'} {least} and {'below' if self.below else 'at most'} {most}"

    def check(self, value: Any, name: str) -> None:
        """Refuses a value that is no number or is outside the range.

        Raises:
            ValueError: Naming the field, the value and what would be right.
        """
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{name} is {shown(value)}; it must be a number, {self}")
        if value not in self:
            raise ValueError(f"{name} is {shown(value)}; it must be {self}")


COUNT = Range(1, 10**9)
"""Number of steps, epochs and the like."""

TOKENS = Range(1, 2**24)
"""Tokens of a text, a window or a batch: the Bible has a million."""

ROWS = Range(1, 2**20)
"""Rows of a batch: the largest ones in use have some ten thousand."""

RATE = Range(0, 1, below=True)
"""A share below 1, such as dropout."""

SHARE = Range(0, 1)

SECONDS = Range(0, 10**6, above=True)
"""Seconds of a measurement."""

LEARNING_RATE = Range(0, 1e38)
"""A wide range, since a learning rate that is too large leads to divergence, which is reported."""

SEED = Range(0, 2**32 - 1)

MOST_SEEDS = 10_000

TO_LEARN = Range(1000, 10**12)
"""Tokens that a conversion learns from."""

LONGEST = Range(16, 2**20)
"""Tokens of the longest text that a conversion learns from."""

BATCH = Range(16, 2**24)
"""Tokens of a step of a conversion."""

EXPANSION = Range(0, 64, above=True)
"""Channels of a Mamba core relative to the model's width."""

ANY = Range(-(2**31), 2**31)
"""Range of fields that have none of their own."""

DEEPEST = 1000
"""Most layers."""

RANGES = {
    "vocab_size": Range(1, 2**24),
    "hidden_size": Range(1, 2**16),
    "embedding_size": Range(1, 2**16),
    "num_hidden_layers": Range(1, DEEPEST),
    "num_hidden_groups": Range(1, DEEPEST),
    "inner_group_num": Range(1, DEEPEST),
    "num_attention_heads": Range(1, 2**12),
    "intermediate_size": Range(1, 2**20),
    "max_position_embeddings": Range(1, 2**24),
    "type_vocab_size": Range(0, 2**16),
    "num_labels": Range(1, 2**20),
    "initializer_range": Range(0, 1000),
    "layer_norm_eps": Range(0, 1),
    "norm_eps": Range(0, 1),
    "rotary_base": Range(0, 10**12, above=True),
    "ssm_expand": EXPANSION,
    "ssm_state_size": Range(1, 2**12),
    "ssm_conv_kernel": Range(1, 2**10),
    "ssm_dt_rank": Range(1, 2**16),
    "ssm_dt_min": Range(0, 10**6, above=True),
    "ssm_dt_max": Range(0, 10**6, above=True),
    "attention_window": Range(0, 2**24),
}
"""Ranges of a configuration's numbers, in MaBERT and other families, by name."""

BY_LAYER = ("rotary_base", "attention_window")
"""Fields that may be a list with one entry per layer."""


def check_fields(fields: Mapping[str, Any], where: str = "") -> None:
    """Refuses numbers in any family's configuration that make no sense or that torch would refuse later.

    Args:
        fields: The fields that are set.
        where: Prefix of a field's name in messages.

    Raises:
        ValueError: Naming the field, the value and what would be right.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    for name in BY_LAYER:
        if isinstance(given.get(name), list):
            for layer, value in enumerate(given.pop(name)):
                if value is not None:
                    RANGES[name].check(value, f"{where}{name}[{layer}]")
    ranges = RANGES | {name: RATE for name in given if "dropout" in name and name.endswith(("dropout", "prob"))}
    for name, value in given.items():
        if name in ranges:
            ranges[name].check(value, where + name)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            ANY.check(value, where + name)
    vocabulary = given.get("vocab_size")
    if vocabulary is not None and given.get("pad_token_id") is not None:
        Range(0, vocabulary - 1).check(given["pad_token_id"], f"{where}pad_token_id")
