"""Conversions by several processes: they learn in steps of as many tokens as one does, and may be stopped."""

import json

import pytest

import mabert
from tests.conversion.helpers import bits
from tests.train.helpers import under_torchrun

PROGRAM = """
import sys
from pathlib import Path
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
    try:
        convert(teacher, text, output, resume=resume == "resume")
    except SystemError as killed:
        print(killed, file=sys.stderr)
        assert not (Path(output) / "result.json").exists()
"""


@pytest.mark.slow
def test_two_processes_learn_as_one_does_and_go_on_to_the_same_bits(tmp_path, embedder, words_to_learn, converted):
    # A whole run stands between both parts of the other, so that no state of a process can pass from one to the other.
    runs = (f"{tmp_path}/{run}" for run in ("stopped,3,", "whole,-1,", "stopped,-1,resume"))
    code, told = under_torchrun(tmp_path, PROGRAM, embedder, words_to_learn, *runs)
    assert code == 0, told
    assert "killed" in told
    result = json.loads((tmp_path / "whole/result.json").read_text())
    assert result["request"]["resolved"]["processes"] == 2
    for name, alone in converted[1]["outcome"]["stages"].items():
        shared = result["outcome"]["stages"][name]
        assert shared["steps"] == pytest.approx(alone["steps"], abs=2)
        assert shared["tokens"] == pytest.approx(alone["tokens"], rel=0.2)
    assert mabert.load(tmp_path / "whole").embed(["a small house"], progress=False).shape == (1, 16)
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")
