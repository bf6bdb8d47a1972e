"""A process that converts is killed or interrupted from outside, and `--resume` goes on to the same bits."""

import os
import signal
import subprocess
import sys
import time

import pytest

from mabert_lab.cli import main
from tests.conversion.helpers import bits
from tests.patience import HANG

CHILD = """
import pathlib, sys, time
import pytest
import torch
from mabert_lab.cli import main
from mabert.conversion import training
from tests.conversion.conftest import make_small
from tests.conversion.test_runs import stop_at

def pause():
    pathlib.Path(sys.argv[1]).touch()
    while not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.05)

torch.set_num_threads(1)
make_small()
training.SAVE_SECONDS = 0.0
stop_at(pytest.MonkeyPatch(), 4, pause)
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_it_goes_on_where_it_was(tmp_path, capsys, small_batches, converted, embedder, words_to_learn, number, code):
    words = ["convert", str(embedder), "-o", str(tmp_path / "out"), "--text", str(words_to_learn), "--pattern", "MTM"]
    words += ["--tokens", "1000", "--length", "30", "--precision", "fp32", "--batch-tokens", "160"]
    command = [sys.executable, "-c", CHILD, str(tmp_path / "here"), str(tmp_path / "sent"), *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as child:
        until = time.monotonic() + HANG
        while not (tmp_path / "here").exists():
            assert time.monotonic() < until
            assert child.poll() is None, child.stderr.read()
            time.sleep(0.05)
        child.send_signal(number)
        (tmp_path / "sent").touch()
        told = child.communicate(timeout=HANG)[1]
    assert child.returncode == code, told
    if number == signal.SIGINT:
        assert "go on with --resume" in told.splitlines()[-1]
    assert list((tmp_path / "out/unfinished/align").glob("checkpoint-*"))
    assert not (tmp_path / "out/model.safetensors").exists()
    assert main([*words, "--resume"]) == 0
    assert bits(tmp_path / "out") == bits(converted[0])
    assert "out: a MaBERT, ready to use" in capsys.readouterr().out
    assert (tmp_path / "out/conversion.html").is_file()
