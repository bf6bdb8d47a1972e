"""Commands of the lab draw the losses of what they trained."""

import csv

import pytest
import yaml

from mabert_lab.cli import main
from tests.train.helpers import training_commands


def drawn(folder):
    """The picture's text."""
    return (folder / "loss.svg").read_text()


@pytest.mark.slow
def test_both_trainings_draw_their_losses(tmp_path):
    commands = training_commands(tmp_path)
    assert main([*commands["pretrain"], "training.log_steps=2"]) == 0
    assert ">held out<" in drawn(tmp_path / "run")
    tuned = [*commands["finetune"][:-1], str(tmp_path / "tuned"), "--epochs", "2", "--seeds", "0,1"]
    assert main([*tuned, "--learning-rate", "1e-3", "--report-to", "none"]) == 0
    names = [f"seed-{seed}-lr-0.001" for seed in (0, 1)]
    assert all(f">{name}<" in drawn(tmp_path / "tuned") for name in names)
    assert [file.stem for file in sorted((tmp_path / "tuned/history").iterdir())] == names
    for name in names:
        with (tmp_path / f"tuned/history/{name}.csv").open(newline="") as rows:
            assert any(row["loss"] for row in csv.DictReader(rows))
    assert yaml.safe_load((tmp_path / "tuned/request.yaml").read_text())["report_to"] == ["none"]
    assert not (tmp_path / "tuned/tensorboard").exists()
