import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from mabert.data.collate import Collator
from mabert.data.mlm import IGNORED, MlmMasking, PretrainingStream, ValidationSet, Windows
from mabert.data.tokenizer import SPECIAL_TOKENS

SEEDS = st.integers(0, 2**63)
IDS = st.lists(st.integers(0, 99), min_size=1, max_size=60).map(np.array)


@pytest.fixture(scope="module", params=[False, True], ids=["pieces", "words"])
def masking(request, tokenizer):
    return MlmMasking(tokenizer, whole_word=request.param)


def stream(cache, tokenizer, seed=0, **options):
    training, _ = cache.split(0.1)
    stages = [(Windows(training, 16), 150), (Windows(training, 40, "document"), 70)]
    return PretrainingStream(stages, MlmMasking(tokenizer, **options), seed)


@given(ids=IDS, seed=SEEDS, epoch=SEEDS, example=SEEDS)
def test_masks_hide_ordinary_tokens_and_labels_remember_them(masking, tokenizer, ids, seed, epoch, example):
    inputs, labels = masking(ids, seed, epoch, example)
    special = np.isin(ids, tokenizer.all_special_ids)
    chosen = labels != IGNORED
    assert not (chosen & special).any()
    assert (inputs == ids)[~chosen].all()
    assert np.array_equal(np.where(chosen, labels, inputs), ids)
    drawn = inputs[chosen & (inputs != labels) & (inputs != tokenizer.mask_token_id)]
    assert not np.isin(drawn, tokenizer.all_special_ids).any()
    ordinary = int((~special).sum())
    wanted = max(1, round(0.15 * ordinary)) if ordinary else 0
    assert chosen.sum() == wanted if not masking.whole_word else bool(chosen.any()) == bool(ordinary)


@given(ids=IDS, first=st.tuples(SEEDS, SEEDS, SEEDS), noise=SEEDS)
def test_masks_depend_on_seed_epoch_and_example_only(masking, ids, first, noise):
    before = masking(ids, *first)
    torch.manual_seed(noise % 2**32)
    np.random.seed(noise % 2**32)
    masking(ids, *reversed(first))
    after = masking(ids, *first)
    assert np.array_equal(before[0], after[0])
    assert np.array_equal(before[1], after[1])


def test_masks_change_with_each_of_seed_epoch_and_example(masking):
    ids = np.arange(5, 100)
    seen = {masking(ids, *key)[1].tobytes() for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**40, 0, 0)]}
    assert len(seen) == 5


def test_shares_are_those_of_bert(tokenizer):
    masking, size = MlmMasking(tokenizer), len(tokenizer)
    ids = np.random.default_rng(0).integers(5, size, (2000, 100))
    inputs, labels = (
        np.stack(parts) for parts in zip(*(masking(row, 0, 0, i) for i, row in enumerate(ids)), strict=True)
    )
    chosen = labels != IGNORED
    assert (chosen.sum(1) == 15).all()
    masked = (inputs == tokenizer.mask_token_id) & chosen
    kept = (inputs == labels) & chosen
    # 30,000 chosen tokens: three standard deviations are 0.7 % and 0.5 %. A random token may equal the old one.
    assert abs(masked.sum() / chosen.sum() - 0.8) < 0.007
    assert abs(kept.sum() / chosen.sum() - (0.1 + 0.1 / (size - 5))) < 0.0055
    assert abs(chosen.mean(0) - 0.15).max() < 0.035
    drawn = np.unique(inputs[chosen & ~masked & ~kept])
    assert set(drawn) == set(range(5, size))


def test_whole_words_are_hidden_whole(tokenizer):
    masking = MlmMasking(tokenizer, whole_word=True, mask_share=1.0, random_share=0.0)
    text = "The unquiet castles recrossed rivers, engineered windows and gardened villages carefully. " * 3
    encoding = tokenizer(text)
    ids, words = np.array(encoding["input_ids"]), np.array([-1 if w is None else w for w in encoding.word_ids()])
    assert len(set(words)) < 0.8 * len(words)
    counts = []
    for example in range(200):
        _, labels = masking(ids, 0, 0, example)
        chosen = labels != IGNORED
        assert not set(words[chosen]) & set(words[~chosen & ~np.isin(ids, tokenizer.all_special_ids)])
        counts.append(chosen.sum())
    ordinary = len(ids) - np.isin(ids, tokenizer.all_special_ids).sum()
    assert max(counts) <= round(0.15 * ordinary)
    assert np.mean(counts) > 0.85 * 0.15 * ordinary


def test_a_special_token_ends_a_word(tokenizer):
    masking = MlmMasking(tokenizer, whole_word=True, probability=0.01)
    piece = next(i for t, i in tokenizer.get_vocab().items() if t.startswith("##"))
    ids = np.array([10, tokenizer.sep_token_id, piece])
    assert {tuple(masking(ids, 0, 0, i)[1]) for i in range(30)} == {(10, IGNORED, IGNORED), (IGNORED, IGNORED, piece)}


def test_masking_refuses_what_cannot_be(tokenizer):
    with pytest.raises(ValueError, match="the masking probability is 0"):
        MlmMasking(tokenizer, probability=0)
    with pytest.raises(ValueError, match=r"mask_share 0\.9 and random_share 0\.2"):
        MlmMasking(tokenizer, mask_share=0.9, random_share=0.2)
    with pytest.raises(ValueError, match="needs a WordPiece vocabulary"):
        MlmMasking(type(tokenizer)(vocab={t: i for i, t in enumerate([*SPECIAL_TOKENS, "a"])}), whole_word=True)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch", [1, 7])
def test_the_stream_is_the_same_for_any_batch_worker_and_restart(cache, tokenizer, workers, batch):
    whole, restarted = stream(cache, tokenizer), stream(cache, tokenizer)
    expected = [whole[i] for i in range(len(whole))]
    begin = 3 * batch
    loader = DataLoader(
        restarted,
        batch_sampler=[list(range(i, min(i + batch, len(whole)))) for i in range(begin, len(whole), batch)],
        num_workers=workers,
        collate_fn=Collator(tokenizer.pad_token_id),
    )
    at = begin
    for rows in loader:
        for ids, mask, labels in zip(rows["input_ids"], rows["attention_mask"], rows["labels"], strict=True):
            assert torch.equal(ids[mask.bool()], expected[at]["input_ids"])
            assert torch.equal(labels[mask.bool()], expected[at]["labels"])
            at += 1
    assert at == len(whole) == 220


def test_every_epoch_sees_every_window_once_in_a_new_order(cache, tokenizer):
    windows = Windows(cache.split(0.1)[0], 40)
    size = len(windows)
    samples = 2 * size + 3

    def made(seed):
        return PretrainingStream([(windows, samples), (windows, 5)], MlmMasking(tokenizer), seed)

    source = made(0)
    places = [source.place(i) for i in range(samples)]
    assert {stage for stage, _, _ in places} == {0}
    epochs = [[example for _, at, example in places if at == epoch] for epoch in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(size))] * 2
    assert epochs[0] != epochs[1]
    assert source.place(samples)[:2] == (1, 0)
    assert epochs[0] != [made(1).place(i)[2] for i in range(size)]
    assert epochs[0][:5] != [source.place(samples + i)[2] for i in range(5)]
    assert [source.place(i) for i in reversed(range(samples))] == places[::-1]


def test_stream_limits(cache, tokenizer):
    source = stream(cache, tokenizer)
    for index in (-1, 220):
        with pytest.raises(IndexError, match=f"sample {index} of 220"):
            source[index]


def test_validation_is_fixed_and_a_limit_takes_a_part(cache, tokenizer):
    _, held_out = cache.split(0.3)
    windows = Windows(held_out, 16)
    masking = MlmMasking(tokenizer)
    full, again = ValidationSet(windows, masking, 5), ValidationSet(windows, masking, 5)
    assert len(full) == len(windows) > 8
    assert all(torch.equal(full[i]["input_ids"], again[i]["input_ids"]) for i in range(len(full)))
    part = ValidationSet(windows, masking, 5, limit=8)
    rows = {tuple(full[i]["input_ids"].tolist()) for i in range(len(full))}
    assert len(part) == 8
    assert {tuple(part[i]["input_ids"].tolist()) for i in range(8)} <= rows
