"""Passages: cut at ends of sentences, within their length, and each with the vector that its text has."""

import json
import logging
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mabert
from mabert import MaBertModel
from mabert.cli import main
from mabert.infer import texts as chunking
from mabert.infer.passages import split_passages
from tests.conversion.helpers import saved_teacher
from tests.data.conftest import KINDS
from tests.infer.conftest import saved
from tests.refusal import refusal
from tests.tolerances import VECTORS
from tests.train.helpers import TEXT

SENTENCES = ["the bird sings.", "A river!", "the old stone house holds a small cold light?", "Wind"]
LONG = " ".join(SENTENCES * 6)
ODD = "The bird。“sings”\uff01\n\nÉté ﬁne \u1e9e İST ΣΑΣ \u200b\ufdfa 日本語のテキスト、"
ODD += "東京" * 30 + " the" * 40 + "x" * 90
TEXTS = [LONG, "", "the bird sings.", " \n", f"  {ODD}\n", "\u200b", "light. " * 30]

CHARACTERS = st.text(st.sampled_from("aBé1 .!?\n。\uff01、\"'」)J\u200bß日İ"), max_size=120)
MARKS = st.text(st.sampled_from("aB.!? \n。"), max_size=60)


def tokens_of(text):
    """Tokens of at most three characters, some of which share a character."""
    spans = [found.span() for found in re.finditer(r"[^\W日]{1,3}|\S", text)]
    return [span for span in spans for _ in range(3 if "é" in text[slice(*span)] else 1) if text[span[0]] != "\u200b"]


def words_of(texts):
    """Their characters but for spaces, in order."""
    return "".join("".join(each.split()) for each in texts)


def sizes_of(text, spans):
    tokens = tokens_of(text)
    return [sum(start <= first < end for first, _ in tokens) for start, end in spans]


@given(text=CHARACTERS, room=st.integers(3, 30))
def test_passages_hold_everything_once_in_order_and_fit(text, room):
    spans = split_passages(text, tokens_of(text), room)
    assert words_of(text[start:end] for start, end in spans) == words_of([text])
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)
    assert max(sizes_of(text, spans), default=0) <= room


@given(texts=st.lists(st.sampled_from(SENTENCES[:3]), min_size=1, max_size=12), room=st.integers(18, 40))
def test_passages_are_whole_sentences_as_many_as_fit(texts, room):
    texts = [each.capitalize() for each in texts]
    text = "".join(each + (" " if number % 2 else "\n") for number, each in enumerate(texts))
    spans = split_passages(text, tokens_of(text), room)
    found = [re.findall(r"[^.!?]+[.!?]", text[start:end]) for start, end in spans]
    assert [each.strip() for several in found for each in several] == texts
    for (_, after), count in zip(pairwise(found), sizes_of(text, spans), strict=False):
        assert count + len(tokens_of(after[0])) > room


@given(text=CHARACTERS | MARKS, more=CHARACTERS | MARKS)
def test_what_follows_a_blank_line_changes_nothing_before_it(text, more):
    """So a sentence is found in the same place whatever the passages around it are."""
    text = f"{text.strip()}B"
    alone = split_passages(text, tokens_of(text), 5)
    whole = f"{text}\n\n{more}"
    assert split_passages(whole, tokens_of(whole), 5)[: len(alone) - 1] == alone[:-1]


@pytest.mark.parametrize(
    "sentences",
    [
        ["The bird sings.", "It rains!", "Does it?", "It does… ", "Well... ", "Yes!!"],
        ['"Stop!" she said.', "(It was late.)", "“Why?”", "He left.", "*Bold.*", "So did I.", "The end"],
        [
            "J. R. Smith met Dr. Lee (see Fig. 3, e.g. No. 5).",
            "He paid 3.50 to Acme Inc. and left.",
            "In the U.S. Army",
        ],
        ["他来了。", "“他走了\uff01”", "好吗\uff1f", "「行く。」", "\uff08はい｡\uff09", "以上"],
        ["क्या है?", "हाँ।", "هل هذا؟", "نعم"],
        ["# A heading", "- one", "- two\n  goes on", "Wrapped lines\nare one", "A last one"],
    ],
)
def test_where_sentences_end(sentences):
    space = "\n" if "\n" in "".join(sentences) else " "
    behind = ["" if re.search(r"[。\uff01\uff1f｡]", each) else space for each in sentences]
    text = "".join(each.strip() + space for each, space in zip(sentences, behind, strict=True))
    least = max(len(tokens_of(each)) for each in sentences)
    starts = {start for room in range(least, least + 40) for start, _ in split_passages(text, tokens_of(text), room)}
    wanted = np.cumsum([0, *(len(each.strip()) + len(space) for each, space in zip(sentences, behind, strict=True))])
    assert starts <= set(wanted[:-1].tolist())
    for each, after in pairwise(sentences):  # and there is an end at each of these places
        both = f"{each.strip()}{behind[sentences.index(each)]}{after.strip()}"
        room = max(len(tokens_of(each)), len(tokens_of(after)))
        assert [both[slice(*span)] for span in split_passages(both, tokens_of(both), room)] == [
            each.strip(),
            after.strip(),
        ]


def test_a_long_sentence_begins_a_passage_and_is_cut_at_words_and_a_long_word_at_tokens():
    text = "One. It goes on and on, abcdefghijkl mnopqrstuvwx and on. Two."
    assert [text[slice(*span)] for span in split_passages(text, tokens_of(text), 8)] == [
        "One.",
        "It goes on and on,",
        "abcdefghijkl mnopqrstuvwx",
        "and on. Two.",
    ]
    assert [text[slice(*span)] for span in split_passages(text, tokens_of(text), 3)][4:6] == ["abcdefghi", "jkl"]
    wide = "日本日本\uff0c日本日本日本。"
    assert [wide[slice(*span)] for span in split_passages(wide, tokens_of(wide), 6)] == [
        "日本日本\uff0c",
        "日本日本日本",
        "。",
    ]
    assert split_passages("é é", [(0, 1)] * 9 + [(2, 3)] * 9, 4) == [(0, 1), (2, 3)]


@pytest.fixture(scope="module", params=sorted(KINDS))
def model(request, tmp_path_factory):
    """A model with a tokenizer that cuts words in its own way, and is surprised by most of `ODD`."""
    words = KINDS[request.param]([TEXT] * 3)
    fields = {"max_position_embeddings": 512, "pad_token_id": words.pad_token_id}
    return mabert.load(saved(MaBertModel, tmp_path_factory.mktemp(request.param), words, **fields))


def slices(texts, found):
    return [texts[text][start:end] for text, start, end in zip(*found[1:], strict=True)]


def asked(model, texts=TEXTS, length=32, **more):
    return model.passages(texts, length, progress=False, **more)


@pytest.mark.parametrize("context", [False, True])
def test_passages_cover_each_text_and_fit_when_read_alone(model, context):
    found = asked(model, context=context)
    assert [column.dtype for column in found] == [np.float32, np.int64, np.int64, np.int64]
    assert len(found.vectors) == len(found.text) == len(found.start) == len(found.end)
    for number, text in enumerate(TEXTS):
        own = [text[start:end] for start, end in zip(*(each[found.text == number] for each in found[2:]), strict=True)]
        assert words_of(own) == words_of([text])
        assert all(each == each.strip() for each in own)
    same = np.diff(found.text) == 0
    assert np.all(np.diff(found.text) >= 0)
    assert np.all(found.end[:-1][same] <= found.start[1:][same])
    assert max(map(len, model.opened.tokenizer(slices(TEXTS, found))["input_ids"])) <= 32


@settings(max_examples=20)
@given(text=CHARACTERS, length=st.integers(30, 40))
def test_any_text_is_cut_to_fit_and_in_the_same_places_in_context(model, text, length):
    found, within = (asked(model, [text], length, context=context) for context in (False, True))
    assert words_of(slices([text], found)) == words_of([text])
    assert max(map(len, model.opened.tokenizer(["", *slices([text], found)])["input_ids"])) <= length
    np.testing.assert_array_equal(found[1:], within[1:])
    assert np.isfinite(within.vectors).all()


@pytest.mark.parametrize("way", [{}, {"pooling": "cls"}, {"normalize": True}])
def test_a_passage_alone_has_the_vector_of_its_text(model, way):
    found = asked(model, **way)
    np.testing.assert_allclose(found.vectors, model.embed(slices(TEXTS, found), progress=False, **way), **VECTORS)
    alone = asked(model, deterministic=True, **way)
    vectors = model.embed(slices(TEXTS, alone), deterministic=True, progress=False, **way)
    np.testing.assert_array_equal(alone.vectors, vectors)


@pytest.mark.parametrize("context", [False, True])
def test_vectors_do_not_depend_on_batches_windows_or_neighbours(model, context, monkeypatch):
    found, alone = asked(model, context=context), asked(model, context=context, deterministic=True)
    few = asked(model, context=context, batch_tokens=1)
    np.testing.assert_allclose(few.vectors, found.vectors, **VECTORS)
    turned = asked(model, TEXTS[::-1], context=context)
    order = np.lexsort((turned.start, len(TEXTS) - 1 - turned.text))
    np.testing.assert_array_equal(turned.start[order], found.start)
    np.testing.assert_allclose(turned.vectors[order], found.vectors, **VECTORS)
    monkeypatch.setattr(chunking, "CHUNK_TEXTS", 2)
    for one, same in zip(asked(model, context=context, deterministic=True), alone, strict=True):
        np.testing.assert_array_equal(one, same)


def test_in_context_a_text_of_one_passage_has_the_vector_that_embed_gives_it(model, classifier):
    texts = ["the bird sings.", " A river!\n", "\u200b"]
    for each, way in ((model, {}), (mabert.load(classifier), {"pooling": "map"})):
        for more in ({}, {"normalize": True}):
            found = asked(each, texts, 24, context=True, deterministic=True, **way, **more)
            assert found.text.tolist() == [0, 1, 2]
            vectors = each.embed(texts, deterministic=True, progress=False, **way, **more)
            np.testing.assert_array_equal(found.vectors, vectors)


def test_in_context_the_mean_of_a_texts_passages_is_the_texts(model):
    for text in (LONG, ODD):
        found = asked(model, [text], context=True)
        ends = np.array(model.opened.tokenizer(text, return_offsets_mapping=True)["offset_mapping"])[1:-1, 1]
        first = np.searchsorted(ends, found.start, side="right")
        counts = np.diff([0, *(first[1:] + 1), len(ends) + 2])  # [CLS] is the first one's, [SEP] the last one's
        assert len(counts) >= 3
        mean = (counts[:, None] * found.vectors).sum(0) / counts.sum()
        np.testing.assert_allclose(mean, model.embed([text], progress=False)[0], **VECTORS)


def test_in_context_a_passage_knows_its_text_and_alone_it_does_not(model):
    for context in (True, False):
        found, other = (asked(model, [text], context=context) for text in (LONG, f"{LONG} slowly again."))
        np.testing.assert_array_equal(found.end[:3], other.end[:3])
        assert (np.abs(found.vectors[:3] - other.vectors[:3]).max() > 1e-4) == context


@pytest.mark.parametrize("lower", [False, True])
def test_a_prompt_and_lower_case_are_part_of_what_is_read_and_not_of_the_places(tmp_path, lower):
    folder = saved_teacher(tmp_path / "model", sentences="mean")
    prompt = {"prompts": {"query": "The wind İ: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompt))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 40, "do_lower_case": lower}))
    model = mabert.load(folder)
    texts = ["İ İ THE BIRD İ sings. A RIVER. İİ light. " * 4, "the bird"]
    found = asked(model, texts, 20)
    prepared = [model.opened.sentences.prepared(each) for each in slices(texts, found)]
    assert 18 <= max(map(len, model.opened.tokenizer(prepared)["input_ids"])) <= 20
    assert {each[-1] for each in slices(texts, found)} == {".", "d"}
    np.testing.assert_allclose(found.vectors, model.embed(slices(texts, found), progress=False), **VECTORS)
    within = asked(model, texts, 20, context=True, max_length=40, truncate=True)
    np.testing.assert_allclose(within.vectors[-1:], model.embed(texts[1:], progress=False), **VECTORS)
    assert len(within.vectors) < len(found.vectors)


def test_in_context_longer_texts_are_refused_or_cut_and_told(model, caplog):
    texts = [" ".join(SENTENCES * 40), "the bird sings."]
    with pytest.raises(ValueError, match=r"^the input: 1 of 2 texts are longer than 512 tokens .* \(--truncate"):
        asked(model, texts, context=True)
    caplog.set_level(logging.INFO)
    for most in (16, 200):
        found = asked(model, texts, context=True, max_length=most, truncate=True)
        assert caplog.records.pop().message == "texts that were cut: 1 of 2"
        read = texts[0][: found.end[found.text == 0].max()]
        assert most - 2 <= len(model.opened.tokenizer(read)["input_ids"]) <= most
        if most == 16:
            vectors = model.embed(texts, max_length=most, truncate=True, progress=False)
            np.testing.assert_allclose(found.vectors, vectors, **VECTORS)


@pytest.mark.parametrize("context", [False, True])
def test_texts_without_passages(model, context):
    for texts in ([], ["", "\n"]):
        found = asked(model, texts, context=context)
        assert [column.shape for column in found] == [(0, 8), (0,), (0,), (0,)]
        assert [column.dtype for column in found] == [np.float32, np.int64, np.int64, np.int64]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"length": 7}, r"^length is 7; it must be at least 8 and at most \d+$"),
        ({"length": 12.5}, r"^length is 12.5; it must be a whole number$"),
        ({"length": 25}, r"^passages of 25 tokens are asked for; the model has positions for 24$"),
        ({"context": True, "pooling": "cls"}, r"a passage in context has no \[CLS\] of its own; use pooling='mean'$"),
        ({"truncate": True}, r"^truncate is for texts that are read whole \(context\)"),
        ({"max_length": 20}, r"^max_length is for texts that are read whole \(context\)"),
        ({"pooling": "max"}, r"^pooling is 'max'; it must be one of"),
        ({"texts": "the bird"}, r"^the input: one string, 'the bird'"),
        ({"texts": ["the bird", None]}, r"^the input: text 2 is None, not text$"),
        ({"texts": [None], "context": True}, r"^the input: text 1 is None, not text$"),
    ],
)
def test_what_cannot_be_asked_is_one_line(masked_lm, how, message):
    with pytest.raises(ValueError, match=message):
        asked(mabert.load(masked_lm), **{"texts": TEXTS[:3], "length": 20, **how})


def test_a_character_that_is_longer_than_a_passage_is_named(tmp_path):
    words = KINDS["pieces"](["ab \u0635\u0644\u0649\u0627\u0644\u0647\u0639\u064a\u0648\u0633\u0645"])
    folder = saved(MaBertModel, tmp_path, words, pad_token_id=words.pad_token_id)
    with pytest.raises(ValueError, match=r"^'\ufdfa' in text 2 cannot be cut and is \d+ tokens, .* passages of 8 are"):
        asked(mabert.load(folder), ["ab", "ab \ufdfa"], 8)


@pytest.mark.slow
@pytest.mark.parametrize("context", [False, True])
def test_passages_of_minilm(context):
    model = mabert.load("minilm", device="cpu")
    texts = [(LONG + " ") * 2, "Where the river meets the sea, birds rest. " * 9, SENTENCES[0]]
    found = model.passages(texts, context=context, progress=False)
    vectors = model.embed(slices(texts, found), progress=False)
    alike = (found.vectors * vectors).sum(1)
    assert np.all(alike > (0.5 if context else 1 - 1e-5))
    assert alike[-1] == pytest.approx(1, abs=1e-5)
    assert len(alike) > len(texts)


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = [LONG[:90], "", "the bird.\nA river! the wind sings. " * 3]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return texts


@pytest.mark.parametrize("options", [[], ["--context", "--max-length", "24", "--truncate"]])
def test_the_command_writes_places_beside_an_npy_and_else_in_the_rows(capsys, masked_lm, rows, monkeypatch, options):
    how = {"context": True, "max_length": 24, "truncate": True} if options else {}
    wanted = mabert.load(masked_lm).passages(rows, 16, progress=False, **how)
    columns = (column.tolist() for column in wanted[1:])
    places = [dict(zip(("text", "start", "end"), each, strict=True)) for each in zip(*columns, strict=True)]
    monkeypatch.setattr(chunking, "CHUNK_TEXTS", 2)
    command = ["embed", str(masked_lm), "in.jsonl", "--passages", "16", *options]
    capsys.readouterr()
    assert main([*command, "-o", "v.npy"]) == 0
    told = ["v.npy: {} vectors of 8 numbers", "v.passages.jsonl: text, start and end of {} passages"]
    assert capsys.readouterr().out.splitlines() == [line.format(len(places)) for line in told]
    vectors = np.load("v.npy", allow_pickle=False)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, wanted.vectors, **VECTORS)
    assert list(map(json.loads, Path("v.passages.jsonl").read_text().splitlines())) == places
    assert main(command) == 0
    assert main([*command, "-o", "v.jsonl"]) == 0
    for lines in (capsys.readouterr().out.splitlines()[: len(places)], Path("v.jsonl").read_text().splitlines()):
        found = list(map(json.loads, lines))
        assert {tuple(each) for each in found} == {("text", "start", "end", "vector")}
        np.testing.assert_allclose([each.pop("vector") for each in found], wanted.vectors, **VECTORS)
        assert found == places


def test_the_command_leaves_what_is_there_and_nothing_by_halves(capsys, masked_lm, rows, tmp_path, monkeypatch):
    command = ["embed", str(masked_lm), "in.jsonl", "-o", "v.npy"]
    (tmp_path / "v.passages.jsonl").write_text("mine")
    assert main([*command, "--passages", "16"]) == 2
    assert capsys.readouterr().err == "mabert: v.passages.jsonl exists already; name another file\n"
    assert (tmp_path / "v.passages.jsonl").read_text() == "mine"
    (tmp_path / "v.passages.jsonl").unlink()
    monkeypatch.setattr(chunking, "CHUNK_TEXTS", 2)
    assert main([*command, "--passages", "16", "--context", "--max-length", "26"]) == 2
    assert main([*command, "--passages", "16", "--context", "--max-length", "24"]) == 2
    assert "texts are longer than 24 tokens" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--passages", "7"], "--passages is 7; it must be at least 8 and at most 16777216"),
        (["--passages", "many"], "--passages is 'many'; it must be a whole number"),
        (["--context"], "--context is for passages; say how long they are by --passages"),
        (["--passages", "16", "--truncate"], "truncate is for texts that are read whole (context)"),
    ],
)
def test_what_the_command_refuses_is_one_line(capsys, masked_lm, rows, options, message):
    told = refusal(capsys, ["embed", masked_lm, "in.jsonl", *options])
    assert told.startswith("mabert: ")
    assert message in told
