"""Conversions by several processes: they learn in steps of as many tokens as one does, and may be stopped."""

import json

import pytest

import mabert
from tests.conversion.helpers import bits
from tests.train.helpers import under_torchrun

PROGRAM = """
import sys
import pytest
from mabert.conversion import training
from tests.conversion.conftest import make_small
from tests.conversion.helpers import convert
from tests.conversion.test_runs import stop_at
from tests.train.helpers import kill
make_small()
training.SAVE_SECONDS = 0.0
teacher, text, *runs = sys.argv[1:]
for run in runs:
    output, stop, resume = run.split(",")
    stop_at(pytest.MonkeyPatch(), int(stop), kill)
    convert(teacher, text, output, resume=resume == "resume")
"""


@pytest.mark.slow
def test_two_processes_learn_as_one_does_and_go_on_to_the_same_bits(tmp_path, embedder, words_to_learn, converted):
    def start(*runs):
        told = (f"{tmp_path}/{run}" for run in runs)
        return under_torchrun(tmp_path, PROGRAM, embedder, words_to_learn, *told)

    assert "SystemError: killed" in start("whole,-1,", "stopped,3,")[1]
    result = json.loads((tmp_path / "whole/result.json").read_text())
    assert result["request"]["resolved"]["processes"] == 2
    for name, alone in converted[1]["outcome"]["stages"].items():
        shared = result["outcome"]["stages"][name]
        assert shared["steps"] == pytest.approx(alone["steps"], abs=2)
        assert shared["tokens"] == pytest.approx(alone["tokens"], rel=0.2)
    assert mabert.load(tmp_path / "whole").embed(["a small house"], progress=False).shape == (1, 16)
    assert not (tmp_path / "stopped/result.json").exists()
    code, told = start("stopped,-1,resume")
    assert code == 0, told
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")
