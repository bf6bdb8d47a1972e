"""Pretraining that goes on from a model: its weights, sizes and tokenizer, and nothing lost of any of them."""

import dataclasses

import pytest
import torch
import yaml
from safetensors.torch import save_file

from mabert import MaBertForSequenceClassification
from mabert.baselines.registry import FAMILIES, family_named
from mabert.cli import main
from mabert.data.tokenizer import fingerprint, load_tokenizer
from mabert.files import places
from mabert.files.places import find
from mabert.opening.opened import extend, open_model
from mabert.train.pretrain import pretrain
from mabert.train.pretrain_run import model_config
from mabert.train.recipe import Stage, as_mapping, load_recipe
from tests.train.helpers import of_family, recipe, tokenizer, weights


@pytest.fixture
def start(tmp_path):
    """A model of random weights with its tokenizer, of other sizes than any recipe's."""
    return of_family("mabert", tmp_path / "start", hidden_size=24)


def begin(tmp_path, start, **training):
    return dataclasses.replace(recipe(tmp_path, **training), model={}, start_from=str(start))


def test_an_extended_model_is_trained_on_longer_windows(tmp_path, start):
    plan = dataclasses.replace(begin(tmp_path, start, steps=1), stages=[Stage(48, 1.0)])
    with pytest.raises(ValueError, match=r"windows of 48 tokens, .* is 24; `mabert extend .*start` gives it more"):
        pretrain(plan, tmp_path / "run", progress=False)
    extend(start, 48, tmp_path / "long")
    plan = dataclasses.replace(plan, start_from=str(tmp_path / "long"))
    pretrain(plan, tmp_path / "run", progress=False)
    assert open_model(tmp_path / "run").config.max_position_embeddings == 48


@pytest.mark.parametrize("named", [False, True])
def test_on_the_command_line_the_model_takes_the_place_of_the_recipes(tmp_path, start, monkeypatch, named):
    monkeypatch.setattr(places, "SHIPPED", tmp_path)
    monkeypatch.chdir(tmp_path.parent)
    plan, place = as_mapping(recipe(tmp_path, steps=1)) | {"tokenizer": "elsewhere"}, "start" if named else str(start)
    assert plan["model"]["hidden_size"] != 24
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    output = ["-o", str(tmp_path / "run")]
    command = ["pretrain", str(tmp_path / "plan.yaml"), "--start-from", place, "model.hidden_dropout_prob=0", *output]
    assert main(command) == 0
    after = open_model(tmp_path / "run").config
    assert (after.hidden_size, after.hidden_dropout_prob) == (24, 0.0)
    request = yaml.safe_load((tmp_path / "run" / "request.yaml").read_text())
    assert request["start_from"] == place
    assert "start_from" not in as_mapping(recipe(tmp_path)), "other runs are known as before"
    assert request["resolved"]["weights"] == find(start).digest()
    for again in (command, ["pretrain", "mini", *output]):
        assert main([*again, "--resume"]) == 0, "it goes on as it was asked for"


@pytest.mark.parametrize("name", ["mabert", "bert", "albert", "longformer", "deberta", "modernbert"])
def test_a_model_of_any_family_goes_on_with_its_tokenizer_and_loses_no_weight(tmp_path, name):
    start = of_family(name, tmp_path / "start")
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(as_mapping(recipe(tmp_path, steps=2, learning_rate=0.0))))
    plan = load_recipe(tmp_path / "plan.yaml", [f"start_from={start}"])
    assert plan.architecture == name
    pretrain(plan, tmp_path / "run", progress=False)
    for weight, value in weights(start).items():
        assert torch.equal(value, weights(tmp_path / "run")[weight]), weight
    assert fingerprint(load_tokenizer(str(tmp_path / "run"))) == fingerprint(tokenizer())


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "mabert"])
def test_dropout_is_that_of_the_family(tmp_path, name):
    start = of_family(name, tmp_path / "start", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    plan = dataclasses.replace(begin(tmp_path, start), architecture=name, model={"hidden_dropout_prob": 0.25})
    changed = model_config(plan, tokenizer(), open_model(start))
    hidden = family_named(name).dropout(0.25, 0.0)
    assert {field: getattr(changed, field) for field in hidden} == hidden


def test_what_would_not_fit_the_weights_is_refused(tmp_path, start):
    with pytest.raises(ValueError, match=r"model.hidden_size is that of .*start, which the run starts from"):
        dataclasses.replace(begin(tmp_path, start), model={"hidden_size": 32})
    with pytest.raises(FileNotFoundError, match="no model folder"):
        load_recipe("mini", ["start_from=nowhere", "data.sources=[text.txt]"])
    other = tokenizer()
    other.add_tokens(["unheard"])
    other.save_pretrained(tmp_path / "other")
    for changes, message in (
        ({"architecture": "bert"}, r"architecture is 'bert', and .*start is a mabert"),
        ({"tokenizer": str(tmp_path / "other")}, r"the tokenizer is not the one in .*start, whose ids the weights"),
        (
            {"model": {"padding_safe_masking": "both"}},
            "model.padding_safe_masking is 'both'; it must be one of 'none'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            pretrain(dataclasses.replace(begin(tmp_path, start), **changes), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def outgrown(start):
    larger = tokenizer()
    larger.add_tokens(["unheard"])
    larger.save_pretrained(start)


def without_head(start):
    MaBertForSequenceClassification(open_model(start).config).save_pretrained(start)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (outgrown, r"the tokenizer in .*start has \d+ entries, the model's vocabulary"),
        (without_head, r"was saved as MaBertForSequenceClassification; for MaBertForMaskedLM it"),
    ],
)
def test_a_model_that_cannot_go_on_is_refused_before_the_text_is_read(tmp_path, start, monkeypatch, change, message):
    change(start)
    monkeypatch.setattr("mabert.train.pretrain_run.prepare_data", lambda *_: pytest.fail("the text was read"))
    with pytest.raises(ValueError, match=message):
        pretrain(begin(tmp_path, start), tmp_path / "run", progress=False)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("2024", "start_from is 2024; it must be text"),
        ("[runs/mini]", r"start_from is \['runs/mini'\]; it must be text"),
        ("''", "start_from is ''; it must be a model's folder or name"),
    ],
)
def test_a_start_that_is_no_name_is_refused(tmp_path, capsys, value, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_recipe("mini", [f"start_from={value}"])
    assert main(["pretrain", "mini", "--start-from", "", "-o", str(tmp_path / "run")]) == 2, "of an empty variable"
    assert capsys.readouterr().err.startswith("mabert: ")
    assert not (tmp_path / "run").exists()


def test_other_weights_there_are_another_run(tmp_path, start):
    pretrain(begin(tmp_path, start, steps=1), tmp_path / "run", progress=False)
    changed = {name: weight + 1 for name, weight in weights(start).items()}
    save_file(changed, start / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"holds another run; it differs in resolved.weights"):
        pretrain(begin(tmp_path, start, steps=1), tmp_path / "run", resume=True, progress=False)
