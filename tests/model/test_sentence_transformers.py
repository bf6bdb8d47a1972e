"""sentence-transformers opens and keeps what a model has learned, and gives the vectors that `mabert.load` gives."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

import mabert
from mabert import MaBertForMaskedLM, MaBertForSequenceClassification, MaBertModel
from mabert.cli import main
from mabert.files.sentences import SentenceFolder
from mabert.model.map_pooling import MapPooling
from tests.model import helpers
from tests.model.helpers import config
from tests.train.helpers import WORDS, tokenizer

TEXTS = ["the bird sings", "a river", " ".join(WORDS[:12]), "wind " * 5]


@pytest.fixture
def saved(tmp_path):
    """Saves a model whose weights are large enough that poolings differ."""

    def saved(kind=MaBertForSequenceClassification, name="model", **fields):
        model = helpers.saved(kind, tmp_path / name, tokenizer(), **fields)
        with torch.no_grad():
            for weight in getattr(model, "pooler", torch.nn.Module()).parameters():
                weight.normal_()
        model.save_pretrained(tmp_path / name)
        return tmp_path / name

    return saved


def opened(folder):
    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=True, local_files_only=True)


def same_vectors(folder, **asked):
    """Checks that both give the same vectors of a folder; returns them."""
    theirs = opened(folder).encode(TEXTS, batch_size=3)
    np.testing.assert_allclose(mabert.load(folder).embed(TEXTS, progress=False, **asked), theirs, rtol=1e-4, atol=1e-5)
    return theirs


def test_a_classifiers_pooling_is_kept_with_the_layers_behind_it(saved):
    folder = saved(pooler_act="tanh", pooler_norm=True)
    same_vectors(folder, pooling="map")
    theirs = same_vectors(folder)
    mean = mabert.load(folder).embed(TEXTS, pooling="mean", progress=False)
    assert np.abs(mean - theirs).max() > 1e-2


def test_what_sentence_transformers_saves_stays_the_same(saved, tmp_path):
    folder = saved(pooler_act="tanh")
    model = opened(folder)
    with torch.no_grad():
        model[1].pooler.score.weight.mul_(-3)  # as training might
    wanted = model.encode(TEXTS)
    model.save(str(tmp_path / "again"))
    np.testing.assert_allclose(same_vectors(tmp_path / "again"), wanted, rtol=1e-5, atol=1e-6)
    assert not np.allclose(wanted, opened(folder).encode(TEXTS), atol=1e-3)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalize", [False, True])
def test_modules_of_sentence_transformers_come_before_the_configuration(saved, tmp_path, pooling, normalize):
    encoder = Transformer(str(saved(MaBertModel)))
    modules = [encoder, Pooling(encoder.get_embedding_dimension(), pooling), *([Normalize()] if normalize else [])]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "again"))
    same_vectors(tmp_path / "again")


@pytest.mark.parametrize("lower", [False, True])
def test_texts_are_prepared_alike(saved, tmp_path, lower):
    encoder = Transformer(str(saved(MaBertModel)))
    modules = [encoder, Pooling(encoder.get_embedding_dimension(), "mean")]
    prompts = {"prompts": {"query": "the wind sings "}, "default_prompt_name": "query"}
    SentenceTransformer(modules=modules, device="cpu", **prompts).save(str(tmp_path / "again"))
    settings = tmp_path / "again/sentence_bert_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "max_seq_length": 12, "do_lower_case": lower}))
    theirs = opened(tmp_path / "again").encode(TEXTS)
    model = mabert.load(tmp_path / "again")
    np.testing.assert_allclose(model.embed(TEXTS, truncate=True, progress=False), theirs, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="longer than 12 tokens"):
        model.embed(TEXTS, progress=False)
    said = model.embed(TEXTS, truncate=True, pooling="mean", normalize=False, progress=False)
    np.testing.assert_allclose(said, theirs, rtol=1e-4, atol=1e-5, err_msg="the folder's own is said")


def test_a_prompt_is_put_in_lower_case_with_its_text():
    assert SentenceFolder(Path(), "mean", False, prompt="Find ", lower=True).prepared("A Bird") == "find a bird"


def test_a_new_pooling_stands_behind_any_encoder(saved, tmp_path):
    encoder = Transformer(str(saved(MaBertModel)))
    model = SentenceTransformer(modules=[encoder, MapPooling(encoder.get_embedding_dimension())], device="cpu")
    model.save(str(tmp_path / "again"))
    np.testing.assert_allclose(same_vectors(tmp_path / "again"), model.encode(TEXTS), rtol=1e-5, atol=1e-6)


def test_a_text_has_the_same_vector_in_any_batch(saved):
    model = opened(saved())
    alone = np.concatenate([model.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(model.encode(TEXTS, batch_size=4), alone, rtol=1e-4, atol=1e-6)


def test_the_head_stays_a_cross_encoders(saved):
    folder = saved(num_labels=1)
    pairs = [(text, "the bird") for text in TEXTS]
    encoder = CrossEncoder(str(folder), device="cpu", trust_remote_code=True)
    found = encoder.predict(pairs, activation_fn=torch.nn.Identity())
    wanted = mabert.load(folder).predict(TEXTS, ["the bird"] * len(TEXTS), progress=False)
    np.testing.assert_allclose(found, [each["score"] for each in wanted], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [MaBertModel, MaBertForMaskedLM, MaBertForSequenceClassification])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", ["map", "attention", "cls", "mean"])
def test_both_give_the_same_vectors_of_any_folder(saved, kind, normalize, pooling):
    theirs = same_vectors(saved(kind, pooling=pooling, normalize=normalize))
    assert np.allclose(np.linalg.norm(theirs, axis=1), 1) == normalize


def test_modules_are_listed_where_the_librarys_own_choice_would_differ(saved):
    assert not (saved(MaBertModel, name="encoder") / "modules.json").exists()
    assert not (saved(pooling="mean", name="even") / "modules.json").exists()
    with pytest.raises(ValueError, match="the classifier pools by 'cls'; 'map' is needed"):
        MapPooling.of(MaBertForSequenceClassification(config(pooling="cls")))


def test_settings_without_weights_and_other_settings_are_one_line(saved, tmp_path):
    folder = saved()
    opened(folder).save(str(tmp_path / "again"))
    settings = tmp_path / "again/1_MapPooling/config.json"
    settings.write_text(json.dumps({"size": 3}))
    with pytest.raises(ValueError, match=r"config.json has size; it must have hidden_size, pooler_act"):
        mabert.load(tmp_path / "again").embed(TEXTS)
    opened(folder).save(str(tmp_path / "again"))
    (tmp_path / "again/1_MapPooling/model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has settings in 1_MapPooling and no model.safetensors beside them"):
        opened(tmp_path / "again")


def test_embed_says_once_where_vectors_were_never_trained_for_similarity(saved, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    folder = saved()
    for kind in (folder, saved(MaBertModel, name="encoder"), saved(name="fine-tuned", normalize=True)):
        assert main(["embed", str(kind), str(tmp_path / "texts.txt"), "-o", f"{kind}.npy"]) == 0
        told = capsys.readouterr().err
        assert told.count(f"mabert: {kind} was never trained to put similar texts near each other") == 1
        assert "mabert convert sentence-transformers/all-MiniLM-L6-v2 --text FILE -o FOLDER" in told
    opened(folder).save(str(tmp_path / "again"))
    assert main(["embed", str(tmp_path / "again"), str(tmp_path / "texts.txt"), "-o", str(tmp_path / "out.npy")]) == 0
    assert "never trained" not in capsys.readouterr().err
