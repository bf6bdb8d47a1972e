"""A checkpoint that is not whole is refused in one line, which names the file and the newest checkpoint that is."""

import json
import shutil
from unittest.mock import Mock

import pytest

from mabert.train import checkpoint
from mabert_lab.cli import main
from tests.bad_input.conftest import hashes

FILES = (
    "config.json generators-0.json manifest.json model.safetensors open_with_mabert.py optimizer.safetensors "
    "scheduler.json tokenizer.json tokenizer_config.json trainer_state.json"
)


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGE = {
    "missing": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "cut short": cut,
    "another bit": flip,
}


def test_a_checkpoint_has_a_manifest_of_all_its_files(made):
    for folder in (made / "run").glob("checkpoint-*"):
        names = {file.name for file in folder.iterdir()}
        assert names == set(FILES.split())
        assert set(json.loads((folder / "manifest.json").read_text())["files"]) == names - {"manifest.json"}


@pytest.mark.parametrize(
    ("name", "damage"),
    # Another digit in the manifest is damage of the file that it is of.
    [
        (name, damage)
        for name in FILES.split()
        for damage in DAMAGE
        if (name, damage) != ("manifest.json", "another bit")
    ],
)
def test_a_damaged_checkpoint_is_refused(run, refused, name, damage):
    DAMAGE[damage](run / "checkpoint-4" / name)
    before = hashes(run)
    told = refused("pretrain", "any", "-o", run, "--resume")
    assert f"{run}/checkpoint-4/{name} is " in told
    assert told.endswith(
        f"the newest whole checkpoint is {run}/checkpoint-3: --resume-from checkpoint-3 goes on from there"
    )
    assert hashes(run) == before


def test_going_on_from_the_newest_whole_checkpoint_gives_the_same_weights(made, run, refused):
    shutil.copytree(run / "checkpoint-4", run / "checkpoint-10")
    assert checkpoint.checkpoint_to_resume(run) == run / "checkpoint-10", "by number, not by name"
    (run / "checkpoint-10" / "optimizer.safetensors").unlink()
    (run / "checkpoint-4" / "optimizer.safetensors").unlink()
    (run / "checkpoint-3" / "model.safetensors").unlink()
    assert f"{run}/checkpoint-2: --resume-from" in refused("pretrain", "any", "-o", run, "--resume")
    assert "is missing" in refused("pretrain", "any", "-o", run, "--resume-from", "checkpoint-3")
    assert "no checkpoint 'checkpoint-7'; there are: checkpoint-2" in refused(
        "pretrain", "any", "-o", run, "--resume-from", "checkpoint-7"
    )
    (run / "model.safetensors").unlink()
    assert main(["pretrain", "any", "-o", str(run), "--resume-from", str(run / "checkpoint-2")]) == 0
    assert (run / "model.safetensors").read_bytes() == (made / "run" / "model.safetensors").read_bytes()
    assert all(checkpoint.fault(folder) is None for folder in run.glob("checkpoint-*"))


def test_a_run_without_a_whole_checkpoint_says_how_to_begin_anew(run, refused):
    for folder in run.glob("checkpoint-*"):
        (folder / "scheduler.json").unlink()
    told = refused("pretrain", "any", "-o", run, "--resume")
    assert told.endswith("no other checkpoint is whole: remove that checkpoint, and --resume begins anew")


def test_a_foreign_pickle_is_refused_and_never_opened(run, refused):
    (run / "checkpoint-4" / "rng_state.pth").write_bytes(b"cos\nsystem\n(S'touch /tmp/never'\ntR.")
    told = refused("pretrain", "any", "-o", run, "--resume")
    assert "checkpoint-4/rng_state.pth is not of this checkpoint" in told


def test_a_fine_tuning_goes_on_from_whole_checkpoints_alone(made, tmp_path, monkeypatch, refused):
    command = ["finetune", made / "run", "--train", made / "classes.csv", "--epochs", "2", "-o", tmp_path / "tuned"]
    with monkeypatch.context() as patched:
        patched.setattr("mabert.train.trainer.MaBertTrainer.save_seconds", 0.0)
        patched.setattr("mabert.train.finetune.filling", Mock(side_effect=OSError("stopped")))
        refused(*command)
    (kept,) = (tmp_path / "tuned").rglob("checkpoint-*")
    (kept / "optimizer.safetensors").write_bytes(b"")
    before = hashes(tmp_path / "tuned")
    told = refused(*command, "--resume")
    assert f"{kept}/optimizer.safetensors is damaged" in told
    assert told.endswith("no other checkpoint is whole: remove that checkpoint, and --resume begins anew")
    assert hashes(tmp_path / "tuned") == before
