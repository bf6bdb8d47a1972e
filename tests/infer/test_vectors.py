"""How a folder says that its vectors are made: what `embed` goes by unless it is told otherwise."""

import json
import logging

import numpy as np
import pytest

import mabert
from mabert import MaBertModel
from mabert.cli import main
from tests.conversion.helpers import saved_teacher, sentence_files
from tests.infer.conftest import saved
from tests.refusal import refusal

TEXTS = ["the bird sings", "a river", "the old stone house holds a small cold light"]


@pytest.fixture
def in_the_hubs_cache(tmp_path, monkeypatch):
    """The name of an embedder that the hub's cache has; the hub itself is out of reach."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    commit, kept = "0" * 40, tmp_path / "hub/models--owner--embedder"
    saved_teacher(kept / "snapshots" / commit, sentences="cls")
    (kept / "refs").mkdir()
    (kept / "refs/main").write_text(commit)
    return "owner/embedder"


def test_an_empty_text_is_told_of_behind_a_prompt_too(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    folder = saved_teacher(tmp_path, sentences="mean")
    prompt = {"prompts": {"query": "the wind: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompt))
    mabert.load(folder).embed([*TEXTS, ""], progress=False)
    assert [record.message for record in caplog.records] == ["texts that are empty: 1 of 4"]


def norms(vectors):
    return np.linalg.norm(vectors, axis=1)


@pytest.fixture(scope="module", params=["mabert", "bert"])
def makes(request, tmp_path_factory, words):
    """Makes a folder of either family that says how vectors are made, or says nothing."""

    def make(pooling=None, normalize=False):
        folder = tmp_path_factory.mktemp("folder")
        if request.param == "mabert":
            return saved(MaBertModel, folder, words, pooling=pooling or "map", normalize=normalize)
        saved_teacher(folder, sentences=pooling)
        if pooling and not normalize:
            modules = json.loads((folder / "modules.json").read_text())
            (folder / "modules.json").write_text(json.dumps(modules[:-1]))
        return folder

    return make


@pytest.mark.parametrize("said", [("mean", True), ("mean", False), ("cls", True), ("cls", False), (None, False)])
def test_what_is_asked_for_comes_first_then_what_the_folder_says_then_means_as_they_are(makes, said):
    folder = makes(*said)
    pooling, normalize = said[0] or "mean", said[1]
    for asked in ({}, {"pooling": "mean"}, {"normalize": True}, {"normalize": False}):
        given = mabert.load(folder).embed(TEXTS, progress=False, **asked)
        whole = {"pooling": pooling, "normalize": normalize, **asked}
        np.testing.assert_array_equal(given, mabert.load(folder).embed(TEXTS, progress=False, **whole))
        assert (np.abs(norms(given) - 1).max() < 1e-5) == whole["normalize"]


def test_a_pooling_that_there_is_not_is_refused_until_another_way_is_asked_for(tmp_path):
    folder = saved_teacher(tmp_path / "model")
    sentence_files(folder, "max")
    with pytest.raises(ValueError, match=r"mean or cls is needed; for vectors of another kind, say both pooling and"):
        mabert.load(folder).embed(TEXTS, progress=False)
    assert mabert.load(folder).embed(TEXTS, pooling="mean", normalize=False, progress=False).shape == (3, 16)
    # Newer folders name their pooling.
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 16, "pooling_mode": "cls"}))
    wanted = mabert.load(folder).embed(TEXTS, pooling="cls", normalize=True, progress=False)
    np.testing.assert_array_equal(mabert.load(folder).embed(TEXTS, progress=False), wanted)


@pytest.mark.parametrize(
    ("options", "scaled"), [([], True), (["--no-normalize"], False), (["--pooling", "mean", "--normalize"], True)]
)
def test_the_command_goes_by_the_folder_too(tmp_path, options, scaled):
    folder = saved_teacher(tmp_path / "model", sentences="cls")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    place = tmp_path / "vectors.npy"
    assert main(["embed", str(folder), str(tmp_path / "texts.txt"), "-o", str(place), *options]) == 0
    wanted = mabert.load(folder).embed(TEXTS, pooling="mean" if "mean" in options else None, normalize=scaled)
    np.testing.assert_allclose(np.load(place), wanted, rtol=1e-6)
    assert (np.abs(norms(wanted) - 1).max() < 1e-5) == scaled


def test_a_model_of_the_hub_makes_vectors_as_its_files_say(tmp_path, monkeypatch, in_the_hubs_cache):
    monkeypatch.chdir(tmp_path)
    model = mabert.load(in_the_hubs_cache)
    wanted = model.embed(TEXTS, pooling="cls", normalize=True, progress=False)
    np.testing.assert_array_equal(model.embed(TEXTS, progress=False), wanted)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    assert main(["embed", in_the_hubs_cache, "texts.txt", "-o", "vectors.npy"]) == 0
    np.testing.assert_allclose(np.load("vectors.npy"), wanted, rtol=1e-6)


def test_a_model_that_the_hub_has_not_is_one_line(capsys, in_the_hubs_cache):
    for command in ("embed", "info", "fill-mask"):
        told = "mabert: no model 'owner/other': neither a folder here nor to be had from the hub: offline ("
        assert refusal(capsys, [command, "owner/other"]).startswith(told)
