"""Every family through every command: pretraining, fine-tuning, vectors, labels, masks, facts, longer inputs."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import mabert
from mabert.baselines.registry import FAMILIES
from mabert.data.collate import places_of
from mabert.data.encode import EncodingSettings
from mabert.data.tasks import table_task
from mabert.data.tokenizer import train_wordpiece
from mabert.files.sentences import MAP, MAP_TYPE, MODULES, POOL, SETTINGS, SentenceFolder, is_cross_encoder, modules_in
from mabert.infer.info import info
from mabert.model.map_pooling import MapPooling
from mabert.opening.opened import extend, open_model
from mabert.train.finetune import finetune
from mabert.train.folder import RunFolder
from mabert.train.objective import at_places, mean_over_scored
from mabert.train.pretrain import PretrainTrainer, pretrain
from mabert.train.pretrain_run import resolve
from mabert.train.recipe import FinetuneRecipe, load_recipe
from tests.baselines.helpers import NAMES, small
from tests.conversion.helpers import saved_teacher
from tests.train.helpers import WORDS, kill_at, recipe, same_weights
from tests.train.tasks import splits

MODEL = {"layer_pattern": "MT", "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
TEXTS = ["the bird sings", "a small old house under the wind", "stone"]


def plan(folder, name, **training):
    base = recipe(folder, **training)
    own = {"attention_window": 8} if name == "longformer" else {}  # its inputs are filled up to a multiple
    return dataclasses.replace(base, architecture=name, model={**MODEL, "max_position_embeddings": 24, **own})


def words_of(name):
    return train_wordpiece([" ".join(WORDS) + "."] * 5, 400, segments=name in ("bert", "albert", "bigbird", "mabert"))


def run(recipe, folder, **options):
    return pretrain(recipe, folder, tokenizer=words_of(recipe.architecture), progress=False, **options)


@pytest.fixture(scope="module", params=NAMES)
def pretrained(request, tmp_path_factory):
    """A model of each family, pretrained for twelve steps."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder / "run", run(plan(folder, request.param), folder / "run")


@pytest.mark.slow
def test_pretraining_learns_and_says_what_it_trained(pretrained):
    name, folder, result = pretrained
    losses = [entry["loss"] for entry in result["outcome"]["history"] if "loss" in entry]
    assert losses[-1] < losses[0]
    assert result["request"]["architecture"] == name
    assert json.loads((folder / "config.json").read_text())["model_type"] == FAMILIES[name].model_type
    assert FAMILIES[name].is_finished(open_model(folder).plain()), "weights that follow from trained ones are set"


def test_finetuning_and_predicting(pretrained, tmp_path):
    _, folder, _ = pretrained
    how = {"learning_rates": [2e-2], "epochs": 2, "batch_size": 16, "dropout": 0.0, "precision": "fp32"}
    recipe = FinetuneRecipe(**how, truncate=True)
    finetune(folder, table_task("birds", ("no", "yes")), splits(), tmp_path / "run", recipe, progress=False)
    answers = mabert.load(tmp_path / "run/seed-0").predict(TEXTS, progress=False)
    assert [set(answer["probability"]) for answer in answers] == [{"no", "yes"}] * 3
    again = mabert.load(tmp_path / "run/seed-0").predict(TEXTS[::-1], batch_tokens=1, progress=False)[::-1]
    for one, other in zip(answers, again, strict=True):
        assert one["probability"]["yes"] == pytest.approx(other["probability"]["yes"], abs=1e-5)


def test_vectors_do_not_depend_on_the_batch(pretrained):
    _, folder, _ = pretrained
    together = mabert.load(folder).embed(TEXTS, progress=False)
    alone = mabert.load(folder).embed(TEXTS, deterministic=True, progress=False)
    assert together.shape == (3, 16)
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_a_run_trains_no_weight_that_the_objective_does_not_reach(tmp_path):
    how = {"resume_from": None, "progress": False}
    made = resolve(plan(tmp_path, "longformer"), RunFolder(tmp_path / "run"), tokenizer=words_of("longformer"), **how)
    frozen = {
        name for name, weight in PretrainTrainer(made, False, []).model.named_parameters() if not weight.requires_grad
    }
    assert frozen
    assert all("_global." in name for name in frozen)


def test_masks_are_filled(pretrained):
    name, folder, _ = pretrained
    mask = words_of(name).mask_token
    guesses = mabert.load(folder).fill_mask([f"the {mask} sings"], top=3, progress=False)
    assert len(guesses[0][0]) == 3


def test_facts_add_up(pretrained):
    _, folder, _ = pretrained
    about, weights = info(folder, (8, 16)), load_file(folder / "model.safetensors")
    assert sum(about.parts.values()) == sum(weight.numel() for weight in weights.values())
    assert {"embeddings", "attention", "feed-forward", "norms", "head"} <= set(about.parts)
    assert set(about.memory) == {8, 16}


def test_a_longer_model_is_saved_with_its_tokenizer(pretrained, tmp_path):
    name, folder, _ = pretrained
    extend(folder, 300, tmp_path / "longer")
    text = " ".join(WORDS)
    vectors = mabert.load(tmp_path / "longer").embed([text], progress=False)
    assert np.isfinite(vectors).all()
    if FAMILIES[name].longest(small(name).config) is not None:
        with pytest.raises(ValueError, match="longer than 24 tokens"):
            mabert.load(folder).embed([text], progress=False)
    with pytest.raises(ValueError, match="already holds files"):
        extend(folder, 300, tmp_path / "longer")


def test_a_longer_classifier_is_still_given_texts_as_in_fine_tuning(tmp_path):
    saved_teacher(tmp_path / "tuned", use="classifier")
    for number, encoding in enumerate((None, EncodingSettings(9, True, True), EncodingSettings(None, False, False))):
        if encoding is not None:
            encoding.save(tmp_path / "tuned")
        extend(tmp_path / "tuned", 300, tmp_path / f"longer-{number}")
        assert EncodingSettings.beside(tmp_path / f"longer-{number}") == encoding
    (tmp_path / "tuned/encoding.json").write_text("{")
    with pytest.raises(ValueError, match=r"encoding\.json: not JSON"):
        extend(tmp_path / "tuned", 300, tmp_path / "damaged")
    assert not (tmp_path / "damaged").exists()


@pytest.mark.parametrize("pooling", ["cls", "map"])
def test_a_longer_model_gives_short_texts_the_vectors_they_had(tmp_path, pooling):
    folder = saved_teacher(tmp_path / "model", "modernbert", sentences="cls")
    (folder / SETTINGS[1]).write_text(json.dumps({"prompts": {"q": "the bird "}, "default_prompt_name": "q"}))
    if pooling == "map":
        modules = [
            each | ({"path": MAP, "type": MAP_TYPE} if each["path"] == POOL else {}) for each in modules_in(folder)
        ]
        (folder / MODULES).write_text(json.dumps(modules))
        (folder / MAP).mkdir()
        MapPooling(16).save(folder / MAP)
    extend(folder, 300, tmp_path / "longer")
    before, after = (mabert.load(each).embed(TEXTS, progress=False) for each in (folder, tmp_path / "longer"))
    np.testing.assert_array_equal(before, after)
    assert SentenceFolder.at(tmp_path / "longer").longest == 300


def test_a_longer_cross_encoder_still_says_that_it_reads_pairs(tmp_path):
    folder = saved_teacher(tmp_path / "model", use="classifier")
    (folder / SETTINGS[1]).write_text(json.dumps({"model_type": "CrossEncoder"}))
    extend(folder, 300, tmp_path / "longer")
    assert is_cross_encoder(tmp_path / "longer")


@pytest.mark.parametrize("name", NAMES)
def test_scoring_hidden_positions_only_changes_neither_loss_nor_gradients(name):
    model = small(name)
    ids = torch.randint(4, 61, (2, 12), generator=torch.Generator().manual_seed(0))
    labels = ids.masked_fill(torch.rand(2, 12, generator=torch.Generator().manual_seed(1)) > 0.3, -100)
    dense = model(input_ids=ids, labels=labels).loss
    dense.backward()
    gradients = {key: value.grad for key, value in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    places = places_of(labels)
    with at_places(getattr(model, FAMILIES[name].head), places):
        outputs = model(input_ids=ids)
    assert outputs.logits.shape == (int((labels != -100).sum()), 61)
    sparse = mean_over_scored(outputs, labels.flatten()[places])
    sparse.backward()
    torch.testing.assert_close(sparse, dense)
    for key, value in model.named_parameters():
        assert (value.grad is None) == (gradients[key] is None), key
        if value.grad is not None:
            torch.testing.assert_close(value.grad, gradients[key], rtol=1e-4, atol=1e-6)
    assert model(input_ids=ids).logits.shape == (2, 12, 61), "the head sees everything again"


@pytest.mark.slow
def test_a_baseline_resumes_to_the_same_bits(tmp_path):
    recipe = plan(tmp_path, "bert", save_steps=4)
    assert run(recipe, tmp_path / "whole")["outcome"]["steps"] == 12
    with pytest.raises(SystemError):
        run(recipe, tmp_path / "cut", callbacks=[kill_at(9)])
    run(recipe, tmp_path / "cut", resume=True)
    same_weights(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["architecture=roberta"], "there is no model 'roberta'; there are bert"),
        (["architecture=bert", "model.ssm_state_size=8"], "unknown field 'model.ssm_state_size'"),
        (["model.block_size=64"], "unknown field 'model.block_size'"),
    ],
)
def test_fields_that_a_family_has_not_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        load_recipe("mini", overrides)


def test_packed_rows_and_poolings_are_mabert_s(tmp_path):
    with pytest.raises(ValueError, match="only MaBERT takes packed rows here"):
        run(plan(tmp_path, "bert", packing="pack"), tmp_path / "run")
    saved_teacher(tmp_path / "model")
    task = table_task("birds", ("no", "yes"))
    with pytest.raises(ValueError, match="pooling is 'map'; that is MaBERT's"):
        finetune(tmp_path / "model", task, splits(), tmp_path / "tuned", FinetuneRecipe(pooling="map"), progress=False)
    with pytest.raises(ValueError, match="pooling 'map' is MaBERT's"):
        mabert.load(tmp_path / "model").embed(TEXTS, pooling="map")


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [("longformer", {"attention_window": 7}, "make no Longformer"), ("deberta", {"legacy": False}, "make no DeBERTa")],
)
def test_fields_that_make_no_model_get_one_line(name, fields, message, tmp_path):
    base = plan(tmp_path, name)
    wrong = dataclasses.replace(base, model={**base.model, **fields})
    with pytest.raises(ValueError, match=message):
        run(wrong, tmp_path / "run")


def test_a_folder_in_use_is_refused_before_a_tokenizer_is_looked_for(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/other").write_text("")
    monkeypatch.setattr("mabert.train.pretrain_run.find_tokenizer", None)
    with pytest.raises(ValueError, match="already holds files"):
        pretrain(plan(tmp_path, "bert"), tmp_path / "run", progress=False)
