"""Several threads, as a server has them, use models at once: weights are read once, and answers are those of one
thread."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from transformers import AutoModelForMaskedLM, LongformerConfig, LongformerModel

import mabert
from mabert.data.encode import encode_texts
from mabert.infer.loaded import Loaded
from mabert.opening.uses import ready

THREADS = 8
MASKED = ["the [MASK] sings", "a [MASK] stone falls under the old house"]
TEXTS = ["the bird sings", "a river"]


def at_once(*works):
    """What each function gives, all of them begun together, each in a thread of its own."""
    together = threading.Barrier(len(works))

    def begin(work):
        together.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(begin, works))


def test_the_first_users_of_a_model_read_its_weights_once(masked_lm, reads):
    alone = mabert.load(masked_lm).fill_mask(MASKED, progress=False)
    reads.clear()
    shared = mabert.load(masked_lm)
    answers = at_once(*[lambda: shared.fill_mask(MASKED, progress=False)] * THREADS)
    assert answers == [alone] * THREADS
    assert len(reads) == 1
    later = AutoModelForMaskedLM.from_pretrained(masked_lm)
    assert later.predictions.decoder.weight is later.get_input_embeddings().weight
    assert not later.predictions.decoder.weight.is_meta


def test_two_models_are_loaded_at_once_and_one_answers_two_questions(masked_lm, classifier, reads):
    def questions():
        labels, words = mabert.load(classifier), mabert.load(masked_lm)
        return (
            lambda: labels.predict(TEXTS, progress=False),
            lambda: words.fill_mask(MASKED, progress=False),
            lambda: labels.embed(TEXTS, progress=False),
        )

    *expected, vectors = (ask() for ask in questions())
    reads.clear()
    *answers, embedded = at_once(*questions())
    assert answers == expected
    np.testing.assert_array_equal(embedded, vectors)
    assert len(reads) == 2


def test_each_thread_cuts_texts_where_it_asked_for(words):
    texts = ["the bird sings under the old stone house"] * 200

    def cut_at(length):
        return lambda: [encode_texts(words, texts, max_length=length, truncate=True) for _ in range(5)]

    lengths = [4, 5, 6, 7]
    for length, encoded in zip(lengths, at_once(*map(cut_at, lengths)), strict=True):
        assert {len(item["input_ids"]) for items in encoded for item in items} == {length}


def test_a_model_that_changes_with_its_input_serves_one_thread_at_a_time(words):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = ready(LongformerModel(LongformerConfig(vocab_size=len(words), pad_token_id=0, **sizes)).eval())
    loaded, inside = Loaded(model, words), []

    def compute():
        with loaded.computing():
            inside.append(1)
            assert len(inside) == 1
            model(torch.tensor([[1, 2, 3]]))
            inside.pop()

    at_once(*[compute] * THREADS)
