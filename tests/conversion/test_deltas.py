"""A delta is the whole conversion but for the rounding of its cores, and is joined to no other teacher."""

import json
import shutil
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

import mabert
from mabert.cli import main
from mabert.conversion import convert as running
from mabert.conversion.delta import save_delta, whole
from mabert.files.places import DELTA, find
from mabert.opening.opened import open_model
from tests.conversion.conftest import made_once, make_small
from tests.conversion.helpers import TEXTS, convert, saved_teacher

USES = {"embedder": AutoModel, "masked_lm": AutoModelForMaskedLM, "classifier": AutoModelForSequenceClassification}
WIDE = {"A_log", "D", "delta_bias"}
"""Weights of the recurrence, which keep float32."""


@pytest.fixture(scope="session")
def deltas(request, tmp_path_factory, words_to_learn):
    """Deltas of three teachers by name, and the students that they were saved from, as whole folders beside them."""
    place = tmp_path_factory.mktemp("deltas")
    with made_once(tmp_path_factory) as patch:
        make_small(patch)
        for name in USES:

            def both(student, *given, name=name):
                save_delta(student, *given)
                student.save_pretrained(place / f"{name}-whole")

            patch.setattr(running, "save_delta", both)
            convert(request.getfixturevalue(name), words_to_learn, place / name, delta=True)
    return place


@pytest.fixture
def delta(deltas, tmp_path, monkeypatch):
    """A copy of the embedder's delta, which nobody has joined yet."""
    monkeypatch.setenv("MABERT_CACHE", str(tmp_path / "cache"))
    return shutil.copytree(deltas / "embedder", tmp_path / "delta")


def changed(folder, change=None, said_as=None, **about):
    """Writes a delta's file again, its weights and what it says of itself changed."""
    with safe_open(folder / DELTA, framework="pt") as opened:
        said = {**json.loads(opened.metadata()["mabert"]), **about}
    weights = load_file(folder / DELTA)
    if change is not None:
        change(weights)
    told = json.dumps({name: value for name, value in said.items() if value})
    save_file(weights, folder / DELTA, {"mabert": told if said_as is None else said_as})
    return folder


@pytest.mark.parametrize("name", USES)
def test_it_holds_the_cores_alone_and_is_the_student_but_for_their_rounding(deltas, name):
    cores, student = load_file(deltas / name / DELTA), load_file(deltas / f"{name}-whole/model.safetensors")
    joined = load_file(whole(deltas / name) / "model.safetensors")
    assert set(joined) == set(student)
    assert all(".mixer." in each for each in cores)
    wide = {each.rpartition(".")[2] for each, weight in cores.items() if weight.dtype == torch.float32}
    assert wide == WIDE
    assert {weight.dtype for weight in cores.values()} == {torch.float32, torch.bfloat16}
    for key, weight in student.items():
        if ".mixer." not in key or key.rpartition(".")[2] in WIDE:
            assert torch.equal(joined[key], weight), key
        else:
            torch.testing.assert_close(joined[key], weight, rtol=2**-8, atol=0)
    assert not (deltas / name / "model.safetensors").exists()


def test_the_same_cores_are_the_same_file(deltas, tmp_path):
    student, written = AutoModel.from_pretrained(deltas / "embedder-whole"), set()
    for number in range(6):
        (tmp_path / str(number)).mkdir()
        save_delta(student, "encoder", "a/teacher", "0" * 64, tmp_path / str(number))
        written.add((tmp_path / str(number) / DELTA).read_bytes())
    assert len(written) == 1


@pytest.mark.parametrize(("name", "kind"), USES.items())
def test_transformers_opens_it(deltas, name, kind):
    model, whole = kind.from_pretrained(deltas / name), kind.from_pretrained(deltas / f"{name}-whole")
    ids = torch.arange(4, 20)[None]
    with torch.no_grad():
        ours, wanted = model(ids)[0], whole(ids)[0]
    assert type(model) is type(whole)
    assert open_model(deltas / name).use == open_model(deltas / f"{name}-whole").use, "so an export keeps the head"
    assert (ours - wanted).abs().max() <= 2**-5 * wanted.abs().max()


def test_it_is_used_as_a_whole_folder_is(deltas, embedder):
    ours, whole = (mabert.load(deltas / name) for name in ("embedder", "embedder-whole"))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(deltas / "embedder" / file, deltas / "embedder-whole" / file)
    vectors = ours.embed(TEXTS, progress=False)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert (vectors * whole.embed(TEXTS, progress=False)).sum(1).min() > 0.999
    assert mabert.load(deltas / "classifier").predict(TEXTS, progress=False)[0]["label"] in ("bad", "fine", "good")
    assert mabert.load(deltas / "masked_lm").fill_mask(["the [MASK] sings"], top=2, progress=False)[0]


def test_the_commands_take_it(deltas, tmp_path):
    (tmp_path / "rows.csv").write_text("text,label\n" + "the bird sings,good\nold stone,bad\n" * 6)
    assert main(["info", str(deltas / "classifier")]) == 0
    assert main(["predict", str(deltas / "classifier"), str(tmp_path / "rows.csv")]) == 0
    tune = ["finetune", str(deltas / "embedder"), "--train", str(tmp_path / "rows.csv"), "--epochs", "1"]
    assert main([*tune, "-o", str(tmp_path / "tuned")]) == 0
    known = {find(deltas / name).digest() for name in USES}
    assert len(known) == len(USES), "runs tell deltas apart by their weights"
    assert None not in known


def test_it_is_joined_once(delta, monkeypatch):
    place = whole(delta)
    monkeypatch.setattr("mabert.conversion.delta.load_teacher", None)
    assert whole(delta) == place


def test_another_teacher_is_refused_in_one_line(delta, embedder, tmp_path):
    other = saved_teacher(tmp_path / "other", seed=1)
    with pytest.raises(ValueError, match=r"was made of .* with weights [0-9a-f]{16}; the weights there are") as refused:
        whole(changed(delta, teacher=str(other)))
    assert "\n" not in str(refused.value)
    assert not list((tmp_path / "cache/whole").glob("[0-9a-f]*"))
    whole(changed(delta, teacher=str(embedder)))


def test_a_teacher_that_is_not_there_is_named(delta, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", Mock(side_effect=OSError("no connection")))
    for name, why in (("owner/gone", "no model 'owner/gone': neither a"), ("/gone", "no model folder /gone")):
        needs = f"delta is a delta, which needs its teacher {name} under that name: {why}"
        with pytest.raises(FileNotFoundError, match=needs):
            whole(changed(delta, teacher=name))


def more_states(delta):
    """Lets the configuration ask for other cores than there are."""
    config = json.loads((delta / "config.json").read_text())
    (delta / "config.json").write_text(json.dumps({**config, "ssm_state_size": config["ssm_state_size"] + 1}))


def take(weights):
    weights.popitem()


def widen(weights):
    name = next(iter(weights))
    weights[name] = torch.zeros(3, 3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda delta: (delta / DELTA).write_bytes((delta / DELTA).read_bytes()[:-9]), "is damaged or cut short"),
        (lambda delta: (delta / DELTA).write_bytes(b"nothing of the kind"), "is damaged or cut short"),
        (lambda delta: changed(delta, weights=""), "does not say its weights: it is no delta of `mabert convert`"),
        (lambda delta: changed(delta, said_as="[1]"), "describes itself as '\\[1\\]'; it must be a mapping"),
        (lambda delta: changed(delta, said_as="{"), "delta.safetensors"),
        (lambda delta: changed(delta, teacher=["a"]), "does not say its teacher"),
        (lambda delta: changed(delta, use="poems"), "is for 'poems'; it must be one of"),
        (lambda delta: changed(delta, take), "does not fit its configuration: .* is missing in it"),
        (lambda delta: changed(delta, widen), r"does not fit its configuration: .* is \(3, 3\) in it and"),
        (lambda delta: changed(delta, use="masked_lm"), "BertModel has no weight for"),
        (more_states, "does not fit its configuration"),
    ],
)
def test_a_damaged_delta_is_refused_in_one_line(delta, tmp_path, capsys, damage, message):
    damage(delta)
    (tmp_path / "texts.txt").write_text("the bird\n")
    command = ["embed", str(delta), str(tmp_path / "texts.txt"), "-o", str(tmp_path / "vectors.npy")]
    assert main(command) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "Loading weights" not in line]
    with pytest.raises(ValueError, match=message):
        raise ValueError(line)
