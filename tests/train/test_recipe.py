"""Recipes: Table A1 to the letter, overrides, budgets, and what is refused."""

import numpy as np
import pytest
import torch

from mabert.schema.check import check
from mabert.train.recipe import PretrainRecipe, as_mapping, check_seeds, load_recipe


def test_the_paper_recipe_is_table_a1():
    paper = load_recipe("paper")
    training, masking = paper.training, paper.masking
    assert (training.steps, training.batch_size, training.warmup_steps) == (1_000_000, 256, 24_000)
    assert training.learning_rate == 6e-4
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.98, 1e-6)
    assert (training.weight_decay, training.decay_exempt) == (0.01, "default")
    assert (masking.probability, masking.mask_share, masking.random_share) == (0.15, 0.8, 0.1)
    assert [(stage.length, stage.share) for stage in paper.stages] == [(128, 0.9), (512, 0.1)]
    assert paper.steps_by_length() == [(128, 900_000), (512, 100_000)]
    assert paper.model["hidden_dropout_prob"] == paper.model["attention_probs_dropout_prob"] == 0.1
    assert paper.model["layer_pattern"] == "MMT" * 4


@pytest.mark.parametrize(
    ("share", "steps", "warmup"), [(0.1, 100_000, 2400), (0.25, 250_000, 6000), (1, 10**6, 24_000)]
)
def test_budgets_scale_steps_and_warmup_and_nothing_else(share, steps, warmup):
    paper = load_recipe("paper")
    scaled = paper.at_budget(share)
    assert (scaled.training.steps, scaled.training.warmup_steps) == (steps, warmup)
    assert scaled.steps_by_length() == [(128, steps * 9 // 10), (512, steps // 10)]
    back = as_mapping(scaled)
    back["training"] |= {"steps": 10**6, "warmup_steps": 24_000}
    assert back == as_mapping(paper)


@pytest.mark.parametrize("form", [list, tuple, np.array, torch.tensor, iter])
def test_seeds_come_in_any_form(form):
    found = check_seeds(form([3, 0]))
    assert found == [3, 0]
    assert {type(seed) for seed in found} == {int}
    for odd, told in (
        ([0, 0], r"seeds is \[0, 0\]; it must be .* none twice"),
        ([0, -1], r"seeds\[1\] is -1; it must"),
    ):
        with pytest.raises(ValueError, match=told):
            check_seeds(form(odd))


@pytest.mark.parametrize("share", [0, -0.1, 1.01])
def test_budgets_out_of_range(share):
    with pytest.raises(ValueError, match=r"budget is .*; it must be above 0% and at most 100%"):
        load_recipe("paper").at_budget(share)


@pytest.mark.parametrize("name", ["paper", "mini", "demo"])
def test_a_recipe_survives_its_own_mapping(name):
    recipe = load_recipe(name)
    assert check(PretrainRecipe, as_mapping(recipe)) == recipe


def test_any_field_can_be_overridden():
    fields = "training.steps=7 training.learning_rate=6e-4 data.sources=[a.txt,b.txt] model.pooling=cls"
    fields += " tokenizer=some/where data.max_tokens=null masking.whole_word=true"
    changed = load_recipe("mini", [*fields.split(), "stages=[{length: 8, share: 1.0}]"])
    assert changed.training.steps == 7
    assert changed.training.learning_rate == 6e-4
    assert changed.data.sources == ["a.txt", "b.txt"]
    assert changed.model["pooling"] == "cls"
    assert changed.masking.whole_word is True
    assert changed.steps_by_length() == [(8, 7)]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.hiden_size=1", "unknown field 'model.hiden_size'; did you mean 'model.hidden_size'?"),
        ("learning_rate=1", "unknown field 'learning_rate'; did you mean 'training.learning_rate'?"),
        ("model.layer_pattern=MMX", "layer_pattern is 'MMX'; it must be letters M and T"),
        ("data.windows=loose", "data.windows is 'loose'; it must be one of 'packed', 'document'"),
        ("stages=[{length: 128, share: 0.5}]", "shares of stages add up to 0.5; they must add up to 1"),
        ("training.steps", "'training.steps' is not of the form name=value"),
        ("training.seed.name=x", "training.seed.name cannot be set: seed is not a section"),
        ("training.seed=5000000000", "training.seed is 5000000000; it must be at least 0 and at most 4294967295"),
        ("data.held_out=0", "data.held_out is 0; it must be above 0 and below 1"),
        ("stages=[{length: 2, share: 1}]", r"stages\[0\].length is 2; it must be at least 4"),
    ],
)
def test_bad_fields_are_named(override, message):
    with pytest.raises(ValueError, match=message):
        load_recipe("mini", [override])


def test_numbers_may_be_written_in_every_way():
    fields = [
        "model.layer_norm_eps=1e-6",
        "model.initializer_range=1",
        "model.rotary_base=1E5",
        "model.hidden_dropout_prob=0",
    ]
    model = load_recipe("mini", fields).model
    assert {name: (type(value), value) for name, value in model.items() if name in "".join(fields)} == {
        "layer_norm_eps": (float, 1e-6),
        "initializer_range": (float, 1.0),
        "rotary_base": (float, 1e5),
        "hidden_dropout_prob": (int, 0),
    }, "a whole number stays one where it may be, since runs are known by what was written"
    with pytest.raises(ValueError, match=r"model.layer_norm_eps is 'small'; it must be a number"):
        load_recipe("mini", ["model.layer_norm_eps=small"])
    assert load_recipe("mini", ["architecture=modernbert", "model.norm_eps=1"]).model["norm_eps"] == 1.0


def test_bad_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no recipe 'tiny'; give a YAML file or one of .*'demo', 'mini', 'pap"):
        load_recipe("tiny")
    for near in ("mini.yml", "mini.txt", "recipes/paper.md", "elsewhere/mini.yaml"):
        with pytest.raises(FileNotFoundError, match="no recipe"):
            load_recipe(near)
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ValueError, match="holds list; a recipe is a mapping"):
        load_recipe(tmp_path / "list.yaml")
