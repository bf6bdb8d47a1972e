import csv
import gzip
import io
import json
import lzma
import random
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from mabert.data.cache import build_cache
from mabert.data.tokenizer import train_wordpiece

NOUNS = ["river", "castle", "engine", "window", "teacher", "garden", "village", "doctor", "captain", "mountain"]
VERBS = ["carried", "followed", "painted", "opened", "repaired", "visited", "measured", "remembered", "crossed"]
ADJECTIVES = ["quiet", "ancient", "narrow", "bright", "heavy", "forgotten", "careful", "northern", "broken", "golden"]
VOCABULARY = 700
"""Tokens of each kind's `trained` tokenizer."""

SPECIAL = {"unk_token": "<unk>", "pad_token": "<pad>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}

PACKERS = {"": bytes, ".xz": lzma.compress, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}
"""Compression by suffix."""
TABLES = [".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz"]


def write_table(path: Path, rows: list[dict]) -> Path:
    """Writes rows in the format that the name says."""
    packing = path.suffix if path.suffix in PACKERS else ""
    kind, names, text = Path(path.name.removesuffix(packing)).suffix, list(rows[0]), io.StringIO()
    if kind == ".jsonl":
        text.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    elif kind == ".tsv":
        text.writelines("\t".join(map(str, line)) + "\n" for line in [names, *(row.values() for row in rows)])
    elif kind == ".csv":
        csv.writer(text).writerows([names, *(row.values() for row in rows)])
    content = text.getvalue().encode()
    if kind == ".parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({name: [row[name] for row in rows] for name in names}), sink)
        content = sink.getvalue().to_pybytes()
    path.write_bytes(PACKERS[packing](content))
    return path


def sentence(rng: random.Random) -> str:
    return f"The {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} {rng.choice(VERBS)} the {rng.choice(NOUNS)}."


def document(rng: random.Random, paragraphs: int = 3) -> str:
    return "\n".join(" ".join(sentence(rng) for _ in range(rng.randint(1, 6))) for _ in range(paragraphs))


@pytest.fixture(scope="session")
def documents() -> list[str]:
    rng = random.Random(7)
    return [document(rng, rng.randint(1, 5)) for _ in range(60)]


@pytest.fixture(scope="session")
def tokenizer(documents):
    return train_wordpiece(documents, 130)


@pytest.fixture(scope="session")
def text_file(documents, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def cache(text_file, tokenizer, tmp_path_factory):
    return build_cache(text_file, tokenizer, tmp_path_factory.mktemp("caches"), progress=False)


@pytest.fixture
def prepared_here(tmp_path, monkeypatch):
    """What `datasets` prepares goes to the test's own folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def words(count: int) -> str:
    """Words of random syllables, in which q stands before u only."""
    rng = random.Random(3)
    syllables = ["qua", "que", "ba", "tor", "im", "lens", "ra", "di", "ung", "ve", "st", "or", "é"]
    return " ".join("".join(rng.choices(syllables, k=rng.randint(1, 5))) for _ in range(count))


@pytest.fixture(scope="session")
def texts(documents) -> list[str]:
    extra = (
        "In 1871 or 1872 the café's 12 doors (of 25) cost 3.50, \U0001f600 naïve; e\u0301te\u0301: the river?\n"
        "Every character of the names of special tokens: [1] <2> a/b, MASK, CLS, PAD, SEP, UNK."
    )
    return [*documents, *[extra] * 3, words(3000)]


def of_bytes(texts: list[str]) -> PreTrainedTokenizerFast:
    """A BPE over bytes, as RoBERTa has."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = list(SPECIAL.values())
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, special_tokens=special)
    )
    return in_template(made)


def of_pieces(texts: list[str]) -> PreTrainedTokenizerFast:
    """Unigram pieces, as XLM-R has."""
    made = Tokenizer(models.Unigram())
    made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    made.decoder, special = decoders.Metaspace(), list(SPECIAL.values())
    made.train_from_iterator(
        texts, trainers.UnigramTrainer(vocab_size=VOCABULARY, unk_token="<unk>", special_tokens=special)
    )
    return in_template(made)


def in_template(made: Tokenizer) -> PreTrainedTokenizerFast:
    ends = [(token, made.token_to_id(token)) for token in ("<s>", "</s>")]
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ends
    )
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=names, **SPECIAL)


KINDS = {"wordpiece": lambda texts: train_wordpiece(texts, VOCABULARY), "bytes": of_bytes, "pieces": of_pieces}


@pytest.fixture(scope="session")
def trained(texts):
    made = {}

    def of(kind: str):
        if kind not in made:
            made[kind] = KINDS[kind](texts)
        return made[kind]

    return of


@pytest.fixture(params=list(KINDS))
def kind(request) -> str:
    return request.param
