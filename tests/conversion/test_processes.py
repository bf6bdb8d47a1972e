"""Conversions by several processes: they learn in steps of as many tokens as one does, and may be stopped."""

import contextlib
import json

import pytest

import mabert
from mabert.conversion import training
from tests.conversion.conftest import make_small
from tests.conversion.helpers import bits, convert, stop_at
from tests.train.helpers import in_two, kill


def one_after_another(teacher, text, *runs):
    """One of two processes: converts into folders, each with the step before which it is killed."""
    make_small()
    training.ConversionTrainer.save_seconds = 0.0
    for output, stop, resume in runs:
        stop_at(pytest.MonkeyPatch(), stop, kill)
        with contextlib.nullcontext() if stop < 0 else pytest.raises(SystemError):
            convert(teacher, text, output, resume=resume)
        assert stop < 0 or not (output / "result.json").exists()


@pytest.mark.slow
def test_two_processes_learn_as_one_does_and_go_on_to_the_same_bits(tmp_path, embedder, words_to_learn, converted):
    # A whole run stands between both parts of the other, so that no state of a process can pass from one to the other.
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    runs = (stopped, 3, False), (whole, -1, False), (stopped, -1, True)
    in_two(one_after_another, embedder, words_to_learn, *runs)
    result = json.loads((whole / "result.json").read_text())
    assert result["request"]["resolved"]["processes"] == 2
    for name, alone in converted[1]["outcome"]["stages"].items():
        shared = result["outcome"]["stages"][name]
        assert shared["steps"] == pytest.approx(alone["steps"], abs=2)
        assert shared["tokens"] == pytest.approx(alone["tokens"], rel=0.2)
    assert mabert.load(whole).embed(["a small house"], progress=False).shape == (1, 16)
    assert bits(stopped) == bits(whole)
