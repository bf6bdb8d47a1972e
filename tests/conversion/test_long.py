"""Conversions beyond the teacher's positions: ready for the longer texts, stopped and gone on with to the same bits."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import mabert
from mabert.conversion import agreement, choose, training
from mabert.data.tokenizer import load_tokenizer
from mabert_lab.report.conversion import render
from tests.conversion.conftest import made_once
from tests.conversion.helpers import bits, convert, saved_teacher, stop_at
from tests.train.helpers import corpus, kill

LENGTH, POSITIONS = 90, 40
"""Tokens of the longest text, and those that the teachers have positions for."""

LONG = "the bird sings near the river " * 10
"""More tokens than the teachers have positions for, and fewer than their students."""


@pytest.fixture(scope="session")
def long_text(tmp_path_factory):
    """Documents of some 150 tokens."""
    folder = tmp_path_factory.mktemp("long")
    short = corpus(folder / "short.txt", documents=150).read_text().split("\n\n")
    path = folder / "long.txt"
    path.write_text("\n\n".join("\n".join(short[first : first + 5]) for first in range(0, len(short), 5)))
    return path


@pytest.fixture(scope="session")
def longer(tmp_path_factory, embedder, long_text):
    """A conversion of the embedder that nothing stopped, and its result."""
    with made_once(tmp_path_factory):
        folder = tmp_path_factory.mktemp("longer") / "out"
        return folder, convert(embedder, long_text, folder, length=LENGTH)


def test_a_longer_folder_says_its_length_wherever_one_stands_and_keeps_the_teachers_positions(longer, embedder):
    folder, result = longer
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == LENGTH
    settings = json.loads((folder / "sentence_bert_config.json").read_text())
    before = json.loads((embedder / "sentence_bert_config.json").read_text())
    assert settings == {**before, "max_seq_length": LENGTH}
    assert (folder / "modules.json").read_bytes() == (embedder / "modules.json").read_bytes()
    assert load_tokenizer(folder).model_max_length == LENGTH
    assert result["outcome"]["teacher_reads"] == POSITIONS
    name = "embeddings.position_embeddings.weight"
    table = load_file(folder / "model.safetensors")[name]
    assert table.shape == (LENGTH, 16)
    assert torch.equal(table[:POSITIONS], load_file(embedder / "model.safetensors")[name])


def test_card_and_page_say_what_long_texts_alone_are_compared_with(longer, converted):
    told = "the mean over the teacher's windows of 40 tokens"
    for (folder, result), long in ((longer, True), (converted, False)):
        for page in ((folder / "README.md").read_text(), render(result)):
            assert (told in " ".join(page.split())) == ("windows" in page) == long


def vector(model):
    (found,) = model.embed([LONG], progress=False)
    assert np.linalg.norm(found) == pytest.approx(1, abs=1e-5)


def label(model):
    (answer,) = model.predict([LONG], truncate=False, progress=False)
    assert set(answer["probability"]) == {"bad", "fine", "good"}


def guess(model):
    ((guesses,),) = model.fill_mask([LONG + " [MASK]"], top=3, progress=False)
    assert len(guesses) == 3


@pytest.mark.parametrize(
    ("name", "options", "asked"),
    [
        ("embedder", {}, vector),
        ("embedder", {"delta": True}, vector),
        ("classifier", {}, label),
        ("masked_lm", {}, guess),
        pytest.param("modernbert", {}, vector, marks=pytest.mark.slow),  # whose positions have no table
    ],
)
def test_it_reads_what_its_teacher_does_not(request, tmp_path, long_text, name, options, asked):
    if name == "modernbert":
        teacher = saved_teacher(tmp_path / "teacher", name, sentences="mean")
    else:
        teacher = request.getfixturevalue(name)
    result = convert(teacher, long_text, tmp_path / "out", length=LENGTH, **options)
    model = mabert.load(tmp_path / "out")
    asked(model)
    assert model.config.max_position_embeddings == LENGTH
    assert result["outcome"]["use"] == (name if name in ("classifier", "masked_lm") else "encoder")
    assert name != "masked_lm" or model.config.sparse_prediction is False
    assert name != "modernbert" or model.config.attention_window == [None, 4, None]
    if name == "classifier":
        assert json.loads((tmp_path / "out/encoding.json").read_text())["max_length"] == LENGTH
        assert all("answers" in told["student"] for told in result["outcome"]["agreement"]["bands"].values())
    if name == "embedder":
        with pytest.raises(ValueError, match="longer than 32 tokens"):  # as sentence-transformers has it there
            asked(mabert.load(teacher))


def test_agreement_goes_up_to_the_new_length_and_speed_names_who_was_timed(longer):
    outcome = longer[1]["outcome"]
    longest = max(int(band.split("-")[1]) for band in outcome["agreement"]["bands"])
    assert POSITIONS < longest <= LENGTH
    for told in outcome["agreement"]["bands"].values():
        assert np.isfinite([told["student"]["cosine"], told["floor"]["cosine"]]).all()
    (timed,) = outcome["speed"]
    assert timed["length"] == LENGTH
    assert "student" in timed
    assert "teacher" not in timed


@pytest.mark.parametrize("step", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_a_stop_changes_no_bit(tmp_path, monkeypatch, longer, embedder, long_text, step):
    monkeypatch.setattr(training.ConversionTrainer, "save_seconds", 0.0)
    with monkeypatch.context() as patch:
        stop_at(patch, step, kill)
        with pytest.raises(SystemError):
            convert(embedder, long_text, tmp_path / "out", length=LENGTH)
    convert(embedder, long_text, tmp_path / "out", length=LENGTH, resume=True)
    assert bits(tmp_path / "out") == bits(longer[0])


def test_within_the_teachers_length_windows_change_no_bit(
    tmp_path, monkeypatch, small_batches, converted, embedder, words_to_learn
):
    def whole(row, limit):
        return SimpleNamespace(row=row, of_tokens=lambda values: values)

    for module in (training, agreement, choose):
        monkeypatch.setattr(module, "windows_of", whole)
    result = convert(embedder, words_to_learn, tmp_path / "out")
    assert bits(tmp_path / "out") == bits(converted[0])
    assert result["outcome"]["agreement"] == converted[1]["outcome"]["agreement"]


def test_it_is_said_that_windows_teach(tmp_path, monkeypatch, caplog, embedder, long_text):
    monkeypatch.setattr("mabert.conversion.resolve.tokenised", lambda *given: kill())
    for length in (POSITIONS, LENGTH):
        caplog.clear()
        with pytest.raises(SystemError):
            convert(embedder, long_text, tmp_path / "out", length=length)
        told = "the teacher has positions for 40 tokens; longer texts are taught in windows of 40 tokens"
        assert [record.message for record in caplog.records] == [told] * (length > POSITIONS)
