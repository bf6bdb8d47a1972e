"""A conversion learns from what its teacher reads in use, and is measured on that: pairs, prompts, lower case."""

import json
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import CrossEncoder
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

import mabert
from mabert.conversion import choose, pieces
from mabert.conversion import convert as running
from mabert.conversion.pieces import Frame, Pieces, frames_of, read_pairs, reads_pairs
from mabert.conversion.teacher import Teacher, lowering
from mabert.conversion.watch import packed
from mabert.conversion.windows import windows_of
from mabert.data.encode import EncodingSettings
from mabert.files.sentences import is_for_similarity
from mabert.opening.opened import open_model
from tests.conversion.helpers import ASKED, saved_teacher
from tests.train.helpers import WORDS, tokenizer


def like_roberta():
    """A tokenizer that makes no token types and puts two tokens between texts."""
    made = tokenizer()
    ends = [("[CLS]", made.cls_token_id), ("[SEP]", made.sep_token_id)]
    backend = made.backend_tokenizer
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] [SEP] $B [SEP]", special_tokens=ends
    )
    special = {name: getattr(made, name) for name in ("cls_token", "sep_token", "pad_token", "mask_token", "unk_token")}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=["input_ids", "attention_mask"], **special
    )


TOKENIZERS = {"BERT's": tokenizer(), "RoBERTa's": like_roberta()}
SENTENCES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join)


def framed(frame, words, *texts):
    ids = [words(text, add_special_tokens=False)["input_ids"] for text in texts]
    ends = np.cumsum([0, *map(len, ids)])
    places = [0, 0, *(int(end) for each in pairwise(ends) for end in each), 0, 0][:6]
    return Pieces([np.concatenate(ids)], np.array([places]), (frame,))[0]


@settings(max_examples=40)
@given(st.sampled_from(list(TOKENIZERS)), SENTENCES, SENTENCES, st.booleans())
def test_a_frame_makes_of_texts_what_the_tokenizer_makes(kind, first, second, pair):
    words = TOKENIZERS[kind]
    texts = (first, second) if pair else (first,)
    found, expected = framed(Frame.of(words, pair=pair), words, *texts), words(*texts)
    assert found["input_ids"].tolist() == expected["input_ids"]
    types = found["token_type_ids"].tolist() if "token_type_ids" in found else [0] * len(found["input_ids"])
    assert types == expected.get("token_type_ids", [0] * len(types))
    assert ("token_type_ids" in found) == (pair and kind == "BERT's"), "a column of zeros is left out"


@settings(max_examples=20)
@given(st.sampled_from(list(TOKENIZERS)), SENTENCES)
def test_a_prompt_stands_in_front_of_the_text(kind, text):
    words = TOKENIZERS[kind]
    found = framed(Frame.of(words, prompt="the house. "), words, text)
    assert found["input_ids"].tolist() == words("the house. " + text)["input_ids"]


def kinds_of(frames):
    return [frame.is_pair for frame in frames]


def test_a_classifiers_folder_says_whether_it_reads_pairs_and_a_user_says_it_louder(tmp_path):
    place = saved_teacher(tmp_path / "teacher", use="classifier")
    known = SimpleNamespace(opened=open_model(place), use="classifier", reader=tokenizer())
    frames = {pairs: kinds_of(frames_of(known, pairs)) for pairs in (None, True, False)}
    assert frames == {None: [False, True], True: [True], False: [False]}
    for pairs in (True, False):
        EncodingSettings(None, truncate=True, pairs=pairs).save(place)
        known.opened = open_model(place)
        assert reads_pairs(known.opened) is pairs
        assert kinds_of(frames_of(known, None)) == [pairs]
        assert kinds_of(frames_of(known, not pairs)) == [not pairs]
    for known.use in ("encoder", "masked_lm"):
        assert kinds_of(frames_of(known, None)) == [False]
        with pytest.raises(ValueError, match=r"^pairs is on, and .* is no classifier; only those read pairs of texts$"):
            frames_of(known, True)


@pytest.mark.parametrize("version", ["now", "4", "3"])
def test_a_cross_encoder_reads_pairs_and_makes_no_vectors(tmp_path, version):
    plain = saved_teacher(tmp_path / "plain", use="classifier")
    place = tmp_path / "teacher"
    CrossEncoder(str(plain), device="cpu").save_pretrained(str(place))
    if version != "now":
        (place / "config_sentence_transformers.json").unlink()
        (place / "modules.json").unlink()
        config = json.loads((place / "config.json").read_text())
        name = "torch.nn.modules.linear.Identity"
        own = {"sentence_transformers": {"activation_fn": name, "version": "4.1.0"}}
        config |= own if version == "4" else {"sbert_ce_default_activation_function": name}
        (place / "config.json").write_text(json.dumps(config))
    known = Teacher.of(place)
    assert known.opened.sentences is None
    assert not is_for_similarity(known.opened.place)
    assert kinds_of(frames_of(known, None)) == [True]


def test_a_cross_encoders_student_is_opened_as_one_and_scores_alike(tmp_path):
    plain = saved_teacher(tmp_path / "plain", use="classifier", more={"num_labels": 1})
    CrossEncoder(str(plain), device="cpu").save_pretrained(str(tmp_path / "teacher"))
    file, rows = pairs_table(tmp_path)
    mabert.convert(tmp_path / "teacher", [file], tmp_path / "out", text_column="q", pair_column="d", **ASKED)
    own = [row["score"] for row in mabert.load(tmp_path / "out").predict(*zip(*rows[:9], strict=True), progress=False)]
    scores = CrossEncoder(str(tmp_path / "out"), device="cpu").predict(rows[:9], show_progress_bar=False)
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-np.array(own))), rtol=1e-4)


def test_each_prompt_that_a_user_may_choose_has_its_share(tmp_path):
    place = saved_teacher(tmp_path / "teacher", sentences="mean")
    settings = {"prompts": {"query": "the house: ", "document": "the river: ", "none": ""}}
    frames = {}
    for default in (None, "query"):
        (place / "config_sentence_transformers.json").write_text(
            json.dumps({**settings, "default_prompt_name": default})
        )
        known = Teacher.of(place)
        frames[default] = frames_of(known, None)
    assert [frame.size for frame in frames["query"]] == [
        2 + len(known.opened.tokenizer("the house:", add_special_tokens=False)["input_ids"])
    ]
    assert sorted(frame.size for frame in frames[None])[0] == 2
    assert len({frame.ids for frame in frames[None]}) == 3


def test_a_teacher_of_lower_case_learns_from_lower_case(tmp_path):
    place = saved_teacher(tmp_path / "teacher", sentences="mean")
    words = tokenizer()
    words.backend_tokenizer.normalizer = None  # else the tokenizer itself puts texts in lower case
    assert (
        lowering(words)("The RIVER")["input_ids"] == words("the river")["input_ids"] != words("The RIVER")["input_ids"]
    )
    said = json.loads((place / "sentence_bert_config.json").read_text())
    (place / "sentence_bert_config.json").write_text(json.dumps({**said, "do_lower_case": True}))
    known = Teacher.of(place)
    assert known.reader is not known.opened.tokenizer


def pairs_table(folder, rows=300):
    """A table of pairs; returns the file and its rows."""
    draws = np.random.default_rng(0)
    texts = [[" ".join(draws.choice(WORDS, draws.integers(1, 9))) for _ in range(2)] for _ in range(rows)]
    file = folder / "pairs.jsonl"
    file.write_text("".join(json.dumps({"q": q, "d": d}) + "\n" for q, d in texts))
    return file, [tuple(row) for row in texts]


def test_a_tables_pairs_are_learnt_as_they_are_and_others_held_out(tmp_path):
    file, texts = pairs_table(tmp_path)
    words = tokenizer()
    how = {"frame": Frame.of(words, pair=True), "length": 24, "tokens": 2000, "held_out": 300, "seed": 0}
    learnt, held, corpus = read_pairs([file], words, ("q", "d"), **how)
    whole = [words(*row)["input_ids"] for row in texts]
    seen = [[part[index]["input_ids"].tolist() for index in range(len(part))] for part in (learnt, held)]
    for part in seen:
        assert all(row in whole or (len(row) == 24 and row[:4] in [one[:4] for one in whole]) for row in part)
    assert sum(map(len, seen[0])) >= 2000 > sum(map(len, seen[0][:-1]))
    assert sum(map(len, seen[1])) >= 300 > sum(map(len, seen[1][:-1]))
    assert not {*learnt.places[:, 2]} & {*held.places[:, 2]}
    assert read_pairs([file], words, ("q", "d"), **how)[2] == corpus
    assert read_pairs([file], words, ("d", "q"), **how)[2] != corpus


def test_a_table_is_read_until_its_cut_pairs_are_enough(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "AT_ONCE", 50)
    file, _ = pairs_table(tmp_path)
    words = tokenizer()
    how = {"frame": Frame.of(words, pair=True), "length": 6, "tokens": 1000, "held_out": 100, "seed": 0}
    assert sum(read_pairs([file], words, ("q", "d"), **how)[0].lengths) >= 1000


@pytest.mark.parametrize(
    ("columns", "tokens", "told"),
    [
        (("q", "x"), 100, r"pairs\.jsonl, line 1: no 'x'; there is q, d$"),
        (("q", "d"), 10**6, r"^the text has [\d,]+ tokens to learn from, 1,000,000 are asked for; give more text"),
    ],
)
def test_what_is_wrong_with_a_table_of_pairs_is_one_line(tmp_path, columns, tokens, told):
    file, _ = pairs_table(tmp_path)
    words = tokenizer()
    how = {"frame": Frame.of(words, pair=True), "length": 24, "held_out": 300, "seed": 0}
    with pytest.raises(ValueError, match=told) as error:
        read_pairs([file], words, columns, tokens=tokens, **how)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def pair_teacher(tmp_path_factory):
    place = saved_teacher(tmp_path_factory.mktemp("teacher") / "of-pairs", use="classifier")
    EncodingSettings(None, truncate=True, pairs=True).save(place)
    return place


@pytest.mark.parametrize("table", [True, False])
def test_a_teacher_of_pairs_is_asked_about_pairs_alone_and_its_figures_are_of_pairs(
    tmp_path, monkeypatch, pair_teacher, table
):
    surveyed, held = [], []
    begin, measured = choose.Survey.__init__, running.measured
    survey = lambda self, encoder, texts: surveyed.extend(texts) or begin(self, encoder, texts)  # noqa: E731
    monkeypatch.setattr(choose.Survey, "__init__", survey)
    monkeypatch.setattr(running, "measured", lambda run, *given: held.append(run.samples) or measured(run, *given))
    file, _ = pairs_table(tmp_path)
    columns = {"text_column": "q"} | ({"pair_column": "d"} if table else {})
    found = mabert.convert(pair_teacher, [file], tmp_path / "out", **{**ASKED, "pattern": "auto", **columns})
    words, both = tokenizer(), []
    assert all(item["token_type_ids"].any() for item in surveyed), "auto chooses by pairs"
    for index in range(len(held[0])):
        item = held[0][index]
        ids, types = item["input_ids"], item["token_type_ids"].bool()
        both.append((words.decode(ids[~types][1:-1]), words.decode(ids[types][:-1])))
    labels = [
        [each["label"] for each in mabert.load(place).predict(*zip(*both, strict=True), progress=False)]
        for place in (pair_teacher, tmp_path / "out")
    ]
    bands = found["outcome"]["agreement"]["bands"]
    assert all(band.startswith("pairs of ") for band in bands)
    same = sum(band["texts"] * band["student"]["answers"] for band in bands.values())
    assert same == pytest.approx(np.equal(*labels).sum(), abs=1), "the figures are those of use"


def test_who_does_not_say_what_it_reads_learns_from_both_and_is_told(tmp_path, caplog):
    place = saved_teacher(tmp_path / "teacher", use="classifier")
    file, _ = pairs_table(tmp_path)
    found = mabert.convert(place, [file], tmp_path / "out", text_column="q", **ASKED)
    kinds = {band.startswith("pairs of ") for band in found["outcome"]["agreement"]["bands"]}
    assert kinds == {True, False}
    assert f"{place} does not say whether it reads texts or pairs of texts" in caplog.text
    with pytest.raises(ValueError, match=r"^pairs is off, and pair_column is 'd'; leave one of them out$"):
        mabert.convert(place, [file], tmp_path / "off", text_column="q", pair_column="d", pairs=False, **ASKED)
    with pytest.raises(ValueError, match=r"^length is 64; the teacher reads pairs of up to 40 tokens: ask for that$"):
        mabert.convert(place, [file], tmp_path / "long", text_column="q", pairs=True, **{**ASKED, "length": 64})


def test_windows_of_a_row_keep_the_types_of_its_tokens():
    items = [
        {"input_ids": torch.arange(1, 1 + n), "token_type_ids": (torch.arange(n) > n // 2).long()} for n in (9, 30)
    ]
    row = packed(items, torch.device("cpu"))
    windows = windows_of(row, 12)
    ids, types = windows.row["input_ids"][0], windows.row["token_type_ids"][0]
    of_tokens = dict(zip(items[1]["input_ids"].tolist(), items[1]["token_type_ids"].tolist(), strict=True))
    assert all(of_tokens[one] == kind for one, kind in zip(ids[9:].tolist(), types[9:].tolist(), strict=True))
    assert torch.equal(windows_of(row, 40).row["token_type_ids"], row["token_type_ids"])
