"""`mabert pretrain` and `mabert finetune`: running out of memory is one line, and SIGTERM is heard as Ctrl-C is."""

import os
import signal
from unittest.mock import Mock

import pytest
import torch

from mabert.cli import main
from mabert.machine.processes import ended_as_interrupted
from mabert.model.blocks import MambaBlock
from tests.train.helpers import training_commands


@pytest.mark.parametrize(
    ("name", "batch", "helps"),
    [
        (
            "pretrain",
            "4 rows at once (48 tokens, padding included)",
            "--resume with a smaller training.micro_batch_size",
        ),
        ("finetune", "32 rows at once (224 tokens, padding included)", "a smaller batch helps (--batch-size, --batch-"),
    ],
)
def test_want_of_memory_gets_one_line(capsys, monkeypatch, tmp_path, name, batch, helps):
    commands = training_commands(tmp_path)
    monkeypatch.setattr(MambaBlock, "forward", lambda *given, **more: torch.empty(2**50))
    assert main(commands[name]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"mabert: out of memory at step 1, with {batch}; ")
    assert helps in told


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA error: out of memory"), RuntimeError("a defect")])
def test_want_of_memory_anywhere_gets_one_line_and_a_defect_its_traceback(capsys, monkeypatch, tmp_path, error):
    commands = training_commands(tmp_path)
    monkeypatch.setattr("mabert.train.pretrain_run.prepare_data", Mock(side_effect=error))
    if str(error) == "a defect":
        with pytest.raises(RuntimeError, match="a defect"):
            main(commands["pretrain"])
        return
    assert main(commands["pretrain"]) == 2
    assert capsys.readouterr().err.endswith(f"mabert: {str(error) or 'out of memory'}\n")


@pytest.fixture
def unheard():
    """SIGTERM does nothing where nobody hears it, rather than to end the tests."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("name", ["pretrain", "finetune"])
def test_a_run_that_is_told_to_end_saves_first(capsys, monkeypatch, unheard, tmp_path, name):
    commands, forward = training_commands(tmp_path), MambaBlock.forward

    def told(*given, **more):
        os.kill(os.getpid(), signal.SIGTERM)  # at every step, and while it saves
        return forward(*given, **more)

    monkeypatch.setattr(MambaBlock, "forward", told)
    assert main(commands[name]) == 130
    assert "checkpoint-1; go on with --resume\n" in capsys.readouterr().err
    assert list((tmp_path / "run").rglob("checkpoint-1/model.safetensors"))


@pytest.mark.parametrize("heard", [signal.default_int_handler, signal.SIG_IGN])
def test_outside_of_training_it_ends_whether_ctrl_c_would_or_not(unheard, heard):
    before, outside = signal.signal(signal.SIGINT, heard), signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(KeyboardInterrupt), ended_as_interrupted():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)
    assert signal.getsignal(signal.SIGTERM) is outside
