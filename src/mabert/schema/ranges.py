"""Ranges of sensible numbers as annotated types: `steps: Count` is an int with its range."""

import contextlib
import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict, Union

if typing.TYPE_CHECKING:
    from pydantic_core import PydanticCustomError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}

NUMBERS = {
    float: "a number",
    int: "a whole number",
    list: "a list with one entry per layer",
    type(None): "null",
}
"""Kinds of numbers, and what a configuration may have in place of one, as messages name them."""


@dataclass(frozen=True)
class Range:
    """The range of a number, which must be finite.

    In `Annotated[kind, Range(...)]`, `kind` says what is allowed: int, float or both, and None or a list of such
    numbers if it names them.
    """

    least: float
    most: float
    above: bool = False  # whether the number must exceed `least`
    below: bool = False  # whether the number must be below `most`
    written: bool = True  # whether to read a number as YAML writes it: `1e-6` is text there, and `1` a whole number

    def __contains__(self, value: float) -> bool:
        enough = value > self.least if self.above else value >= self.least
        return math.isfinite(value) and enough and (value < self.most if self.below else value <= self.most)

    def __str__(self) -> str:
        # A bound is printed as users write it: 4294967295, not 4.29e+09.
        least, most = (f"{bound}" if isinstance(bound, int) else f"{bound:g}" for bound in (self.least, self.most))
        return f"{'above' if self.above else 'at least'} {least} and {'below' if self.below else 'at most'} {most}"

    def __get_pydantic_core_schema__(self, kind: Any, handler: Any) -> Any:
        from pydantic_core import SchemaValidator, core_schema

        kinds: dict[Any, Any] = {typing.get_origin(each) or each: each for each in alternatives(kind)}
        entry = Annotated[typing.get_args(kinds[list])[0], self] if list in kinds else None
        entries = None if entry is None else SchemaValidator(handler.generate_schema(list[entry]))  # type: ignore[valid-type]

        def check(value: Any) -> Any:
            if self.written and float in kinds and not isinstance(value, (bool, *kinds)):
                with contextlib.suppress(TypeError, ValueError, OverflowError):  # it is refused below
                    value = float(value)
            if isinstance(value, int | float) and not isinstance(value, bool) and value not in self:
                raise must_be(str(self))
            if isinstance(value, bool) or not any(isinstance(value, each) for each in kinds):
                right = " or ".join(NUMBERS[each] for each in kinds if each is not int or float not in kinds)
                whole_too = self.written or float not in kinds or int in kinds
                raise must_be(right if whole_too else f"{right} written with a point, such as 1.0")
            if entries is not None and isinstance(value, list):
                return entries.validate_python(value)
            return value

        return core_schema.no_info_plain_validator_function(check)


@dataclass(frozen=True)
class Read:
    """Reads a value before its type is checked."""

    reader: Callable[[Any], Any]  # function that returns what was meant by a value, or the value

    def __get_pydantic_core_schema__(self, kind: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self.reader, handler(kind))


def share_of(value: Any) -> float:
    """Returns the share that is written `10%` or 0.1; raises pydantic's error if it is none above 0% and up to 100%."""
    text = str(value)
    try:
        share = float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise must_be("above 0% and at most 100%, such as 10%")
    return share


def amount_of(value: Any) -> Any:
    """Returns the number of tokens that is written `400K`, `2M` or `1.5B`; raises pydantic's error for other text."""
    if not isinstance(value, str):
        return value
    said = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)([KMB]?)", value.strip().upper())
    if said is None:
        raise must_be("a number of tokens such as 400K, 2M or 2000000")
    return round(float(said[1]) * UNITS[said[2]])


ONE_OR_MORE = Read(lambda value: list(value) if isinstance(value, list | tuple) else [value])
"""Of a list that may be written as its only entry."""


@dataclass(frozen=True)
class Distinct:
    """A list with at least one entry, and none twice."""

    def __get_pydantic_core_schema__(self, kind: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        def check(values: list[Any]) -> list[Any]:
            if not values or len(set(values)) < len(values):
                raise must_be("at least one, and none twice")
            return values

        return core_schema.no_info_after_validator_function(check, handler(kind))


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union; of another type, that type."""
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def must_be(what: str) -> "PydanticCustomError":
    """Returns pydantic's error for a value that must be something else."""
    from pydantic_core import PydanticCustomError

    return PydanticCustomError("must_be", "it must be {what}", {"what": what})


Count = Annotated[int, Range(1, 10**9)]
"""Number of steps, epochs and the like."""

Tokens = Annotated[int, Range(1, 2**24)]
"""Tokens of a text, a window or a batch: the Bible has a million."""

PassageTokens = Annotated[int, Range(8, 2**24)]
"""Tokens of a passage: special ones, and a few of the text."""

BatchSize = Annotated[int, Range(1, 2**20)]
"""Rows of a batch: the largest ones in use have some ten thousand."""

Rate = Annotated[float, Range(0, 1, below=True)]
"""A share below 1, such as dropout."""

Fraction = Annotated[float, Range(0, 1)]

Budget = Annotated[float, Read(share_of)]
"""Share of a pretraining's steps."""

Seconds = Annotated[float, Range(0, 10**6, above=True)]
"""Seconds of a measurement."""

LearningRate = Annotated[float, Range(0, 1e38)]
"""A wide range, since a learning rate that is too large leads to divergence, which is reported."""

Seed = Annotated[int, Range(0, 2**32 - 1)]

Seeds = Annotated[list[Seed], ONE_OR_MORE, Distinct()]

Budgets = Annotated[list[Budget], ONE_OR_MORE, Distinct()]

MOST_SEEDS = 10_000

Padding = Annotated[int, Range(0, 2**20)]
"""Positions of padding beside a text."""

Conversions = Annotated[int, Range(1, 100)]
"""Conversions of an arm of a study."""

WeightDecay = Annotated[float, Range(0, 1000)]

ToLearn = Annotated[int, Range(1000, 10**12), Read(amount_of)]
"""Tokens that a conversion learns from."""

Longest = Annotated[int, Range(16, 2**20)]
"""Tokens of the longest text that a conversion learns from."""

BatchTokens = Annotated[int, Range(16, 2**24)]
"""Tokens of a step of a conversion."""

Expansion = Annotated[float, Range(0, 64, above=True)]
"""Channels of a Mamba core relative to the model's width."""

AnyNumber = Annotated[float, Range(-(2**31), 2**31)]
"""A number without a range of its own."""

DEEPEST = 1000
"""Most layers."""

Layers = Annotated[int, Range(1, DEEPEST)]
Width = Annotated[int, Range(1, 2**16)]
Classes = Annotated[int, Range(1, 2**20)]
StepSize = Annotated[float, Range(0, 10**6, above=True)]


Vocabulary = Annotated[int, Range(8, 2**24)]
"""Tokens of a trained vocabulary: five special ones, a letter alone, one that continues a word, and one of both."""

BERT_SIZE = 30_522
"""Tokens of BERT's vocabulary."""


class Numbers(TypedDict, total=False):
    """Numbers of configurations in MaBERT and other families, by name; a list has the range for each entry."""

    vocab_size: Annotated[int, Range(1, 2**24)]
    hidden_size: Width
    embedding_size: Width
    num_hidden_layers: Layers
    num_hidden_groups: Layers
    inner_group_num: Layers
    num_attention_heads: Annotated[int, Range(1, 2**12)]
    intermediate_size: Annotated[int, Range(1, 2**20)]
    max_position_embeddings: Tokens
    type_vocab_size: Annotated[int, Range(0, 2**16)]
    num_labels: Classes
    initializer_range: Annotated[float, Range(0, 1000)]
    layer_norm_eps: Fraction
    norm_eps: Fraction
    rotary_base: Annotated[float, Range(0, 10**12, above=True)]
    ssm_expand: Expansion
    ssm_state_size: Annotated[int, Range(1, 2**12)]
    ssm_conv_kernel: Annotated[int, Range(1, 2**10)]
    ssm_dt_rank: Width
    ssm_dt_min: StepSize
    ssm_dt_max: StepSize
    attention_window: Annotated[int, Range(0, 2**24)]


def range_of(hint: Any) -> Range:
    """Returns the range of an annotated type."""
    return typing.cast(Range, hint.__metadata__[0])


RANGES = {name: range_of(hint) for name, hint in typing.get_type_hints(Numbers, include_extras=True).items()}
"""Ranges of a configuration's numbers by name."""
