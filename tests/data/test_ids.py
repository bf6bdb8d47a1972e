"""The ids of a small corpus in every kind of file, which `ids.json` holds: they never change.

The file also holds the vocabularies, so that it speaks of reading and encoding, not of how pieces are learnt.
"""

import json
import lzma
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AlbertTokenizer, BertTokenizer

from mabert.data.cache import build_cache
from mabert.data.encode import encode_texts
from mabert.data.tokenizer import train_wordpiece

KNOWN = json.loads(Path(__file__).with_name("ids.json").read_text(encoding="utf-8"))
PLAIN = (
    "\ufeffThe ferry left at six, and the harbour was quiet.\r\n"
    "Nobody on the ferry spoke; the lamps of the harbour went out one by one.\r\n"
    "\r\n"
    " \t \r\n"
    "\r\n"
    "A second text begins here: it costs 3.50 (or 1,200?) and holds [MASK], [SEP] and </s>.\r\n"
)
ROWS = [
    "Caf\u00e9 and cafe\u0301, na\u00efve \u6e2f\u306e\u5915\u65b9 and \U0001f6a2\U0001f1eb\U0001f1ee\u200d!",
    "   \n ",
    "donau" * 60 + " the ferry " + "x" * 250,
    "One line.\n\nAnother line\u2028of the same text, with\ttabs.",
]
COLUMN = ["The lamps of the quiet ferry.", None, "", "\u00dcBER-quick harbour lights, 42 of them: \u00bd \ufb01 \u2460"]
PACKED = "Packed text about a harbour.\n\nAnd one more, about lamps and ferries and lamps.\n\n\n" * 3


def write_corpus(folder: Path) -> Path:
    folder.mkdir()
    (folder / "a.txt").write_bytes(PLAIN.encode())
    (folder / "b.jsonl").write_text("".join(json.dumps({"text": row, "n": 1}) + "\n\n" for row in ROWS))
    pq.write_table(pa.table({"text": COLUMN, "other": range(len(COLUMN))}), folder / "c.parquet")
    with lzma.open(folder / "d.txt.xz", "wt", encoding="utf-8") as file:
        file.write(PACKED)
    (folder / ".hidden.txt").write_text("never read")
    return folder


def tokenizer_of(algorithm: str):
    if algorithm == "wordpiece":
        return BertTokenizer(vocab={token: index for index, token in enumerate(KNOWN["wordpiece"]["vocabulary"])})
    return AlbertTokenizer(vocab=[(piece, score) for piece, score in KNOWN["unigram"]["vocabulary"]])


@pytest.mark.parametrize("algorithm", ["wordpiece", "unigram"])
def test_a_corpus_gives_the_ids_it_always_gave(algorithm, tmp_path):
    known = KNOWN[algorithm]
    cache = build_cache(write_corpus(tmp_path / "corpus"), tokenizer_of(algorithm), tmp_path / "kept", progress=False)
    assert [document.tolist() for document in np.split(cache.ids, cache.offsets[1:-1])] == known["documents"]


@pytest.mark.parametrize("algorithm", ["wordpiece", "unigram"])
def test_pairs_give_the_ids_they_always_gave(algorithm):
    items = encode_texts(tokenizer_of(algorithm), ROWS, ROWS[::-1], max_length=40, truncate=True)
    assert items == KNOWN[algorithm]["pairs"]


def test_the_wordpiece_trainer_gives_the_vocabulary_it_always_gave():
    trained = train_wordpiece([PLAIN, PACKED, *ROWS], 150).get_vocab()
    assert sorted(trained, key=trained.__getitem__) == KNOWN["wordpiece"]["vocabulary"]
