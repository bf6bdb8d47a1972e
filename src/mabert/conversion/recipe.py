"""Settings of a conversion, and its schedule at a teacher's depth."""

from dataclasses import dataclass
from typing import Literal

from mabert.machine import Precision
from mabert.schema.check import Checked
from mabert.schema.ranges import BatchTokens, Expansion, Fraction, Longest, Seed, ToLearn


@dataclass(frozen=True)
class ConversionRecipe(Checked):
    """Settings of a conversion.

    Attributes:
        pattern: The student's schedule, repeated to the teacher's depth; `auto` measures which layers' attention
            matters least and replaces two thirds of them.
        tokens: Tokens to learn from.
        length: Tokens of the longest text to learn from. If the teacher has fewer positions, the student gets this many
            and learns from the teacher's windows, see `mabert.conversion.windows`.
        direction: Direction of the Mamba cores.
        expand: Expansion ε of the cores.
        end_to_end: Share of the tokens that stage 2 learns from.
        precision: `fp32`, `bf16`, or `auto`, which is bf16 if the device is fast in it.
        seed: Seed of everything random.
        batch_tokens: Most tokens of a step, in all processes together; a longer text is a step of its own. Small steps
            learn the most from each token, large ones keep a GPU busy.
        delta: Whether to save only the cores; the folder then names its teacher, which is joined to them on loading.
    """

    pattern: str = "auto"
    tokens: ToLearn = 2_000_000
    length: Longest = 512
    direction: Literal["forward", "backward", "bidirectional"] = "bidirectional"
    expand: Expansion = 2
    end_to_end: Fraction = 0.25
    precision: Precision = "auto"
    seed: Seed = 0
    batch_tokens: BatchTokens = 512
    delta: bool = False


def at_depth(asked: str, depth: int) -> str:
    """Repeats a schedule, in capitals or not, to a teacher's depth; `auto` stays. Raises ValueError if it is no
    schedule, or no repetition has that many layers."""
    if asked == "auto":
        return asked
    from mabert.model.config import expand_schedule  # loads torch and transformers

    try:
        letters = expand_schedule(asked.upper())
    except ValueError:
        raise ValueError(f"pattern is {asked!r}; it must be letters M and T, such as MMT or MMT*2, or auto") from None
    if len(letters) > depth or depth % len(letters):
        raise ValueError(
            f"pattern is {asked!r}, {len(letters)} layers; the teacher has {depth}: give as many letters, or a pattern "
            "that repeats to them"
        )
    return letters * (depth // len(letters))
