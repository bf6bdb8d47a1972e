"""What training tells where there is no terminal."""

import itertools

import pytest
from transformers import TrainerState

from mabert.train.callbacks import TrainingBar

pytestmark = pytest.mark.usefixtures("ten_seconds_a_look")


def told(capsys, first=True, tokens=range(100, 200_100, 100), last=None):
    """What a run of 2,000 steps that goes on after step 30 writes, in the first process or another."""
    bar = TrainingBar("mini [seed 0]", tokens)
    state = TrainerState(global_step=30, max_steps=2000, is_world_process_zero=first)
    bar.on_train_begin(None, state, None)
    later = [] if last is None else [(90, last)]
    for step, logs in ((50, {"loss": 2.5, "epoch": 1.0}), (70, {"eval_loss": 2.25}), *later):
        state.global_step = step
        bar.on_step_end(None, state, None)
        bar.on_log(None, state, None, logs)
    bar.on_train_end(None, state, None)
    return capsys.readouterr()


def test_without_a_terminal_lines_tell_steps_rate_time_left_and_figures(capsys):
    assert told(capsys) == (
        "",
        "mini [seed 0]  50/2,000  200 tokens/s  16.2 min left  loss 2.500\n"
        "mini [seed 0]  70/2,000  200 tokens/s  16.1 min left  loss 2.500  held-out 2.250 at step 70\n",
    )


def test_time_left_counts_the_tokens_of_steps_that_are_longer(capsys):
    long_last = itertools.accumulate([100] * 1800 + [900] * 200)  # the last tenth of the steps is half of the work
    _, lines = told(capsys, tokens=list(long_last))
    assert lines.splitlines()[0] == "mini [seed 0]  50/2,000  200 tokens/s  29.6 min left  loss 2.500"


@pytest.mark.parametrize(
    ("last", "figures"),
    [
        ({"loss": 2.4}, "loss 2.400  held-out 2.250 at step 70"),
        ({"eval_loss": 2.1, "eval_accuracy": 0.5}, "loss 2.500  held-out 2.100, accuracy 50.0% at step 90"),
    ],
)
def test_a_held_out_loss_has_the_step_that_it_was_measured_at(capsys, last, figures):
    assert told(capsys, last=last)[1].splitlines()[-1].endswith(f"left  {figures}")


def test_other_processes_write_no_lines(capsys):
    assert told(capsys, first=False) == ("", "")
