"""What the schema takes, and that it refuses the rest in one line that names the field, the value and what is right."""

import re
import typing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mabert.conversion.recipe import ConversionRecipe
from mabert.schema import ranges
from mabert.schema.check import Checked, check, hints_of
from mabert.schema.ranges import Range
from mabert.train.recipe import DataRecipe, FinetuneRecipe, MaskingRecipe, PretrainRecipe, Stage, TrainingRecipe
from mabert_lab.bench.models import Plan
from mabert_lab.bench.turns import Protocol
from mabert_lab.study.grid import Arm, ConvertSettings, Scale, Study
from mabert_lab.study.tasks import StudyTask, TableFile

RECIPES = (DataRecipe, MaskingRecipe, Stage, TrainingRecipe, PretrainRecipe, FinetuneRecipe, ConversionRecipe)
KINDS = (*RECIPES, Protocol, Plan, Arm, Study, ConvertSettings, Scale, StudyTask, TableFile)
TYPES = [
    each
    for each in vars(ranges).values()
    if typing.get_origin(each) is Annotated and isinstance(each.__metadata__[0], Range)
]


def bare(hint):
    """Whether an annotation is of a number without a range."""
    if typing.get_origin(hint) is Annotated:
        return hint.__origin__ not in (int, float) and bare(hint.__origin__)
    return hint in (int, float) or any(map(bare, typing.get_args(hint)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_has_a_range(kind):
    assert [name for name, hint in hints_of(kind).items() if bare(hint)] == []


NUMBERS = st.one_of(st.floats(), st.integers(), st.booleans(), st.none(), st.just("many"), st.just([1]))


@given(st.sampled_from(TYPES), st.data())
def test_a_number_in_its_range_is_taken_and_all_else_refused_by_name(hint, data):
    kind, range = hint.__origin__, hint.__metadata__[0]
    value = data.draw(NUMBERS | st.sampled_from([range.least, range.most]))
    if isinstance(value, kind | int) and not isinstance(value, bool) and value in range:
        found = check(hint, value, "it")
        assert (type(found), found) == (kind, value)
        assert kind is int or check(hint, str(value), "it") == value, "YAML reads 6e-4 as text"
    else:
        with pytest.raises(ValueError, match=r"^it is .*; it must be .*$"):
            check(hint, value, "it")


@dataclass
class Part(Checked, where="part"):
    count: ranges.Count
    on: bool = False


@dataclass
class Whole(Checked):
    part: Part = field(default_factory=lambda: Part(1))
    parts: Annotated[list[Part], ranges.ONE_OR_MORE] = field(default_factory=list)
    named: dict[str, Part] = field(default_factory=dict)
    word: Literal["a", "b"] = "a"
    some: dict[str, Any] = field(default_factory=dict)
    learn: ranges.ToLearn | None = None
    seeds: ranges.Seeds = field(default_factory=lambda: [0])

    def __post_init__(self):
        super().__post_init__()
        if self.seeds == [13]:
            raise ValueError("seeds are [13]; they must be lucky")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (3, "the recipe is 3; it must be a mapping of fields"),
        ({"wordy": "a"}, "unknown field 'wordy'; did you mean 'word'?"),
        ({"count": 1}, "unknown field 'count'; did you mean 'part.count'?"),
        ({"xyz": 1}, "unknown field 'xyz'; there are learn, named, part, parts, seeds, some, word"),
        (
            {"part": {"count:1": None}},
            "unknown field 'part.count:1'; YAML wants a space after the colon: 'part.count: 1'",
        ),
        ({"part": {}}, "part lacks count"),
        ({"part": {"count": 0}}, "part.count is 0; it must be at least 1 and at most 1000000000"),
        ({"part": {"count": 1, "on": "yes"}}, "part.on is 'yes'; it must be true or false"),
        ({"parts": [{"count": 1}, {"count": 1.0}]}, "parts[1].count is 1.0; it must be a whole number"),
        ({"parts": {"count": "many"}}, "parts[0].count is 'many'; it must be a whole number"),
        ({"named": {"x": {"count": True}}}, "named.x.count is True; it must be a whole number"),
        ({"named": {1: {"count": 1}}}, "named names 1; it must be text: write '1' in quotes"),
        ({"named": []}, "named is []; it must be a mapping of fields"),
        ({"word": ["a"]}, "word is ['a']; it must be one of 'a', 'b'"),
        ({"some": 1}, "some is 1; it must be a mapping of fields"),
        ({"learn": "1M!"}, "learn is '1M!'; it must be a number of tokens such as 400K, 2M or 2000000"),
        ({"learn": "0.5K"}, "learn is 500; it must be at least 1000 and at most 1000000000000"),
        ({"seeds": []}, "seeds is []; it must be at least one, and none twice"),
        ({"seeds": [1, 1]}, "seeds is [1, 1]; it must be at least one, and none twice"),
        ({"seeds": 13}, "seeds are [13]; they must be lucky"),
    ],
)
def test_what_does_not_fit_is_told_by_its_place(content, told):
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        check(Whole, content)


def test_what_fits_is_read_as_yaml_writes_it():
    found = check(Whole, {"part": {"count": 2}, "some": {}, "parts": {"count": 3}, "learn": "1.5M", "seeds": 4})
    assert found == Whole(Part(2), [Part(3)], learn=1_500_000, seeds=[4])
    with pytest.raises(ValueError, match=r"part.count is 0; it must be at least 1"):
        Part(0)
