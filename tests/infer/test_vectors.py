"""How a folder says that its vectors are made: what `embed` goes by unless it is told otherwise."""

import json

import numpy as np
import pytest

import mabert
from mabert import MaBertModel
from mabert.cli import main
from mabert.infer.embed import embed
from tests.conversion.helpers import saved_teacher, sentence_files
from tests.infer.conftest import saved

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


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_folder_says_it(makes, pooling, normalize):
    folder = makes(pooling, normalize)
    given = embed(folder, TEXTS, progress=False)
    np.testing.assert_array_equal(given, embed(folder, TEXTS, pooling=pooling, normalize=normalize, progress=False))
    assert (np.abs(norms(given) - 1).max() < 1e-5) == normalize


def test_what_is_asked_for_comes_first(makes):
    folder = makes("cls", True)
    raw, unit = (embed(folder, TEXTS, pooling="mean", normalize=given, progress=False) for given in (False, None))
    assert np.abs(norms(raw) - 1).min() > 1e-3
    np.testing.assert_allclose(unit, raw / norms(raw)[:, None], rtol=1e-5, atol=1e-6)
    assert np.abs(norms(embed(folder, TEXTS, normalize=False, progress=False)) - 1).min() > 1e-3


def test_a_folder_that_says_nothing_gives_means_as_they_are(makes):
    folder = makes()
    plain = embed(folder, TEXTS, pooling="mean", normalize=False, progress=False)
    np.testing.assert_array_equal(embed(folder, TEXTS, progress=False), plain)


def test_a_pooling_that_there_is_not_is_refused_until_another_way_is_asked_for(tmp_path):
    folder = saved_teacher(tmp_path / "model")
    sentence_files(folder, "max")
    with pytest.raises(ValueError, match=r"mean or cls is needed; for vectors of another kind, say both pooling and"):
        embed(folder, TEXTS, progress=False)
    assert embed(folder, TEXTS, pooling="mean", normalize=False, progress=False).shape == (3, 16)


def test_newer_folders_name_their_pooling(tmp_path):
    folder = saved_teacher(tmp_path / "model", sentences="cls")
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 16, "pooling_mode": "mean"}))
    wanted = embed(folder, TEXTS, pooling="mean", normalize=True, progress=False)
    np.testing.assert_array_equal(embed(folder, TEXTS, progress=False), wanted)


@pytest.mark.parametrize(
    ("options", "scaled"), [([], True), (["--no-normalize"], False), (["--pooling", "mean", "--normalize"], True)]
)
def test_the_command_goes_by_the_folder_too(tmp_path, options, scaled):
    folder = saved_teacher(tmp_path / "model", sentences="cls")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    place = tmp_path / "vectors.npy"
    assert main(["embed", str(folder), str(tmp_path / "texts.txt"), "-o", str(place), *options]) == 0
    vectors = np.load(place)
    assert (np.abs(norms(vectors) - 1).max() < 1e-5) == scaled
    np.testing.assert_allclose(
        vectors, embed(folder, TEXTS, pooling="mean" if "mean" in options else None, normalize=scaled), rtol=1e-6
    )


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
        assert main([command, "owner/other"]) == 2
        told = "mabert: no model 'owner/other': neither a folder here nor to be had from the hub\n"
        assert capsys.readouterr().err == told
