"""Reading tagged sentences."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data.own import load_own
from mabert.data.words import split_words

WORD = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=6).filter(
    lambda word: len(split_words(word)) < 2
)
TAG = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC"])
SENTENCES = st.lists(st.lists(st.tuples(WORD, TAG), min_size=1, max_size=5), min_size=1, max_size=5)


def write(path, sentences, between=" "):
    if path.suffix == ".jsonl":
        rows = [{"tokens": [word for word, _ in each], "tags": [tag for _, tag in each]} for each in sentences]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        blocks = ["\n".join(f"{word}{between}x{between}{tag}" for word, tag in each) for each in sentences]
        path.write_text("-DOCSTART- -X- O\n\n" + "\n\n".join(blocks) + "\n", encoding="utf-8")
    return path


@settings(max_examples=10)
@given(sentences=SENTENCES)
@pytest.mark.parametrize(("name", "between"), [("t.conll", " "), ("t.bio", "\t"), ("t.txt", "  "), ("t.jsonl", "")])
def test_every_format_gives_the_sentences_back(tmp_path_factory, name, between, sentences):
    sentences = [*sentences, [("Paris", "B-LOC")]]
    path = write(tmp_path_factory.mktemp("tagged") / name, sentences, between)
    task, loaded = load_own({"train": path, "validation": path, "test": path}, kind="tokens")
    words, tags = ([[pair[which] for pair in each] for each in sentences] for which in (0, 1))
    columns = {"text_a": [" ".join(each) for each in words], "tokens": words, "index": list(range(len(words)))}
    assert loaded["test"][:] == columns
    assert loaded["train"][:] == loaded["validation"][:] == columns | {"tags": tags}
    assert task.label_names == ("O", *sorted({tag for each in tags for tag in each} - {"O"}))
    assert (task.kind, task.main_metric, task.positive) == ("tokens", "f1", None)


def test_a_name_of_several_ideographs_goes_on_by_a_tag_that_the_file_need_not_have(tmp_path):
    train = write(tmp_path / "t.conll", [[("京都", "B-LOC"), ("北京", "O"), ("Ines", "B-PER")]])
    dev = write(tmp_path / "d.conll", [[("小林", "B-PER"), ("Ines", "O")]])
    task, _ = load_own({"train": train, "validation": dev}, kind="tokens")
    assert task.label_names == ("O", "B-LOC", "B-PER", "I-LOC", "I-PER")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.conll", "Anna B-PER\nlives\n", r"t\.conll, line 2: the word 'lives' has no tag"),
        ("t.conll", "Anna PER\n", r"t\.conll, line 1: the tag 'PER' of 'Anna' is not O, B-TYPE or I-TYPE"),
        ("t.conll", "Anna O\n", r"t\.conll: all tags are O; there is no entity to learn from"),
        ("t.conll", "-DOCSTART- -X- O\n", r"t\.conll: no sentences"),
        ("t.json", {"version": 2}, r"t\.json: a \.json file; tagged words are read from lines of word and tag"),
        ("t.jsonl", {"tokens": ["a", "b"], "tags": ["O"]}, r"line 1: 2 tokens and 1 tags; each token needs one tag"),
        ("t.jsonl", {"tokens": [], "tags": []}, r"line 1: 'tokens' is empty; leave the row out"),
        ("t.jsonl", {"tokens": "a b", "tags": ["O", "O"]}, r"line 1: 'tokens' is 'a b', not a list of texts"),
        ("t.jsonl", {"tokens": ["a", 1], "tags": ["O", "O"]}, r"line 1: 'tokens' is \['a', 1\], not a list of texts"),
        ("t.jsonl", {"tokens": ["a"]}, r"line 1: no 'tags'"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text if isinstance(text, str) else json.dumps(text))
    with pytest.raises(ValueError, match=message):
        load_own({"train": tmp_path / name}, kind="tokens")


def test_a_tag_that_only_the_validation_file_has_is_refused(tmp_path):
    train = write(tmp_path / "t.conll", [[("Anna", "B-PER")]])
    dev = write(tmp_path / "d.conll", [[("Anna", "B-PER"), ("Paris", "B-LOC")]])
    message = r"d\.conll, line 4: the tag 'B-LOC' of 'Paris' is none of the training file's, O, B-PER"
    with pytest.raises(ValueError, match=message):
        load_own({"train": train, "validation": dev}, kind="tokens")


def test_a_row_of_parquet_is_named_as_one(tmp_path):
    pq.write_table(pa.table({"tokens": [["Anna"]], "tags": [["PER"]]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet, row 1: the tag 'PER' of 'Anna' is not O"):
        load_own({"train": tmp_path / "t.parquet"}, kind="tokens")
