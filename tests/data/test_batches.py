"""Batches by a budget of tokens: every example once, none over the budget, the same again."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import mabert.data.batches
from mabert.data.batches import ExampleSampler, SplitBatches, TokenBudgetSampler, batch_share, batches_by_length

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=60)


@pytest.mark.slow
@given(LENGTHS, st.integers(1, 100), st.integers(0, 5), st.booleans(), st.booleans())
def test_every_example_comes_once_and_no_batch_is_over_the_budget(lengths, tokens, seed, grouped, padded):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mabert.data.batches, "_WINDOW", 3)
        sampler = TokenBudgetSampler(lengths, tokens, seed=seed, grouped=grouped, padded=padded)
        batches = list(sampler)
        assert len(sampler) == len(batches)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        chosen = [lengths[index] for index in batch]
        assert len(batch) == 1 or (max(chosen) * len(batch) if padded else sum(chosen)) <= tokens


FORMS = {
    "array": lambda lengths: np.array(lengths, dtype=np.uint8),
    "tensor": torch.tensor,
    "column": lambda lengths: pd.Series(lengths, range(5, 5 + len(lengths)), dtype="uint8"),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@given(LENGTHS, st.integers(1, 400))
def test_lengths_make_the_same_batches_in_any_form(form, lengths, tokens):
    given = form(lengths)
    assert batches_by_length(given, tokens) == batches_by_length(lengths, tokens)
    assert list(TokenBudgetSampler(given, tokens, grouped=True)) == list(
        TokenBudgetSampler(lengths, tokens, grouped=True)
    )
    same = [list(ExampleSampler(each, 4, epochs=2, seed=0, grouped=True)) for each in (given, lengths)]
    assert same[0] == same[1]


@given(LENGTHS, st.integers(1, 3), st.integers(1, 3), st.integers(1, 60))
def test_a_run_that_ends_early_has_the_first_batches_of_the_whole_one(lengths, epochs, processes, most):
    how = {"tokens": 1, "epochs": epochs, "processes": processes}
    if epochs * len(lengths) < processes or most < processes:
        return
    whole, part = TokenBudgetSampler(lengths, **how), TokenBudgetSampler(lengths, **how, most=most)
    assert list(part) == list(whole)[: most // processes * processes]
    assert part.epoch_ends() == [min(end, len(part)) for end in whole.epoch_ends()]


@given(LENGTHS, st.integers(1, 20), st.integers(1, 3), st.booleans())
def test_every_epoch_has_every_example_once(lengths, size, epochs, grouped):
    sampler = ExampleSampler(lengths, size, epochs=epochs, seed=0, grouped=grouped)
    batches, ends = list(sampler), sampler.epoch_ends()
    assert batches == list(sampler)
    assert len(sampler) == len(batches) == ends[-1]
    passes = [batches[first:end] for first, end in zip([0, *ends], ends, strict=False)]
    for each in passes:
        assert sorted(itertools.chain(*each)) == list(range(len(lengths)))
        assert {len(batch) for batch in each[:-1]} <= {size}


@pytest.mark.parametrize("kind", [ExampleSampler, TokenBudgetSampler])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_run_is_its_epochs_in_new_orders_and_the_same_each_time(kind, grouped):
    lengths = [1 + place % 7 for place in range(50)]
    sampler = kind(lengths, 20, seed=3, epochs=3, grouped=grouped)
    run = list(sampler)
    assert run == list(sampler)
    assert len(run) == len(sampler)
    first, other = (list(kind(lengths, 20, seed=seed, epochs=1, grouped=grouped)) for seed in (3, 4))
    assert run[: len(first)] == first != other
    assert run[len(first) : 2 * len(first)] != first
    assert sorted(index for batch in run for index in batch) == sorted(list(range(50)) * 3)


def test_each_epoch_that_trainer_counts_has_an_order_of_its_own():
    lengths = [1 + place % 7 for place in range(50)]
    sampler, whole = TokenBudgetSampler(lengths, 20, seed=3), list(TokenBudgetSampler(lengths, 20, seed=3, epochs=3))
    loader = Accelerator(cpu=True).prepare(DataLoader(range(50), batch_sampler=sampler, collate_fn=list))
    with pytest.warns(UserWarning, match="give it num_train_epochs=1, and the sampler epochs=N"):
        assert [batch for _ in range(3) for batch in loader] == whole
    sampler.set_epoch(0)
    assert list(sampler) == whole[: len(sampler)]


def test_processes_share_all_batches_but_the_last_few():
    lengths = [1 + 37 * place % 11 for place in range(100)]
    whole = list(TokenBudgetSampler(lengths, 20))
    shares = [
        list(BatchSamplerShard(TokenBudgetSampler(lengths, 20, processes=3), 3, rank, even_batches=False))
        for rank in range(3)
    ]
    assert {len(share) for share in shares} == {len(whole) // 3}
    assert sorted(batch for share in shares for batch in share) == sorted(whole[: len(whole) // 3 * 3])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 4))
def test_processes_share_each_batch_to_the_last_example(sizes, processes):
    ends = list(itertools.accumulate(sizes))
    batches = [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
    divided = SplitBatches(batches, processes)
    shares = [list(BatchSamplerShard(divided, processes, rank, even_batches=False)) for rank in range(processes)]
    assert {len(share) for share in shares} == {len(batches)}
    assert len(divided) == len(batches) * processes
    for step, batch in enumerate(batches):
        counted = [batch_share([1] * len(batch), rank, processes) for rank in range(processes)]
        assert sum(counted) == pytest.approx(processes)
        own = [share[step] if weight else [] for share, weight in zip(shares, counted, strict=True)]
        assert sorted(itertools.chain(*own)) == batch
        assert all(share[step] for share in shares), "no process is without work"


@given(scored=st.lists(st.integers(1, 9), min_size=1, max_size=9), processes=st.integers(1, 4))
def test_what_processes_have_of_a_mean_over_tokens_adds_up_to_it(scored, processes):
    losses = [np.arange(count) + place for place, count in enumerate(scored)]
    means = [np.concatenate(part).mean() if (part := losses[rank::processes]) else 0.0 for rank in range(processes)]
    shares = [batch_share(scored, rank, processes) for rank in range(processes)]
    assert np.dot(shares, means) / processes == pytest.approx(np.concatenate(losses).mean())


def test_grouping_leaves_little_to_pad():
    lengths = [1 + 37 * place % 100 for place in range(1000)]

    def padding(**options):
        batches = TokenBudgetSampler(lengths, 500, padded=True, **options)
        padded = sum(max(lengths[index] for index in batch) * len(batch) for batch in batches)
        return padded / sum(lengths) - 1

    assert padding(grouped=True) < 0.05 < 0.5 < padding()
    spreads = [
        np.mean(
            [np.ptp(np.array(lengths)[batch]) for batch in ExampleSampler(lengths, 8, epochs=1, seed=0, grouped=how)]
        )
        for how in (True, False)
    ]
    assert spreads[0] < spreads[1] / 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "tokens is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"processes": 0}, "processes is 0"),
        ({"lengths": []}, "no examples"),
        ({"tokens": 3, "processes": 2}, "2 examples make fewer batches of 3 tokens than 2 processes"),
    ],
)
def test_senseless_budgets_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TokenBudgetSampler(**{"lengths": [1, 2], **options})
