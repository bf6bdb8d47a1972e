"""A checkpoint that is not whole is refused in one line, which names the file and the newest checkpoint that is."""

import json
import shutil

import pytest
import torch

from mabert.cli import main
from mabert.train import checkpoint
from mabert.train.trainer import MaBertTrainer
from tests.bad_input.conftest import hashes

FILES = (
    "config.json",
    "generators-0.json",
    "manifest.json",
    "model.safetensors",
    "optimizer.safetensors",
    "scheduler.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "trainer_state.json",
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
        assert names == set(FILES)
        assert set(json.loads((folder / "manifest.json").read_text())["files"]) == names - {"manifest.json"}


@pytest.mark.parametrize(
    ("name", "damage"),
    # Another digit in the manifest is damage of the file that it is of.
    [(name, damage) for name in FILES for damage in DAMAGE if (name, damage) != ("manifest.json", "another bit")],
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
    assert all(checkpoint.is_whole(folder) for folder in run.glob("checkpoint-*"))


def test_a_run_without_a_whole_checkpoint_says_how_to_begin_anew(run, refused):
    for folder in run.glob("checkpoint-*"):
        (folder / "scheduler.json").unlink()
    told = refused("pretrain", "any", "-o", run, "--resume")
    assert told.endswith("no other checkpoint is whole: remove that checkpoint, and --resume begins anew")


def test_a_foreign_pickle_is_refused_and_never_opened(run, refused):
    (run / "checkpoint-4" / "rng_state.pth").write_bytes(b"cos\nsystem\n(S'touch /tmp/never'\ntR.")
    told = refused("pretrain", "any", "-o", run, "--resume")
    assert "checkpoint-4/rng_state.pth is not of this checkpoint" in told


@pytest.fixture(scope="module")
def pickled(made, tmp_path_factory):
    """A run with the checkpoints that were written before there were manifests: pickles among them."""
    place = tmp_path_factory.mktemp("pickled") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.delattr(MaBertTrainer, "_save_rng_state")
        patched.delattr(MaBertTrainer, "_save_optimizer_and_scheduler")
        patched.setattr(checkpoint, "seal", lambda folder: None)
        assert main(["pretrain", str(made / "plan.yaml"), "-o", str(place)]) == 0
    (place / "result.json").unlink()
    return place


@pytest.fixture
def old(pickled, tmp_path):
    """A copy of it."""
    return shutil.copytree(pickled, tmp_path / "old")


@pytest.mark.parametrize("damage", ["missing", "empty", "cut short"])
def test_a_damaged_checkpoint_from_before_there_were_manifests_is_refused(old, refused, damage):
    whole = hashes(old / "checkpoint-4")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "model.safetensors"):
        DAMAGE[damage](old / "checkpoint-4" / name)
        told = refused("pretrain", "any", "-o", old, "--resume")
        named = "manifest.json" if (name, damage) == ("optimizer.pt", "missing") else name
        assert f"{old}/checkpoint-4/{named} is " in told
        assert "--resume-from checkpoint-3" in told
        for path, content in whole.items():
            path.write_bytes(content)


def test_checkpoints_from_before_there_were_manifests_go_on(made, old, refused):
    torch.save(print, old / "checkpoint-4" / "rng_state.pth")
    told = refused("pretrain", "any", "-o", old, "--resume")
    assert "rng_state.pth is damaged, or holds more than plain data" in told
    assert "weights_only" not in told
    shutil.rmtree(old / "checkpoint-4")
    (old / "model.safetensors").unlink()
    assert main(["pretrain", "any", "-o", str(old), "--resume"]) == 0
    assert (old / "model.safetensors").read_bytes() == (made / "run" / "model.safetensors").read_bytes()


def test_a_fine_tuning_goes_on_from_whole_checkpoints_alone(made, tmp_path, monkeypatch, refused):
    def stopped(*given):
        raise OSError("stopped")

    command = ["finetune", made / "run", "--train", made / "classes.csv", "--epochs", "2", "-o", tmp_path / "tuned"]
    with monkeypatch.context() as patched:
        patched.setattr("mabert.train.classifier.SAVE_SECONDS", 0.0)
        patched.setattr("mabert.train.finetune.filling", stopped)
        refused(*command)
    (kept,) = (tmp_path / "tuned").rglob("checkpoint-*")
    (kept / "optimizer.safetensors").write_bytes(b"")
    before = hashes(tmp_path / "tuned")
    told = refused(*command, "--resume")
    assert f"{kept}/optimizer.safetensors is damaged" in told
    assert told.endswith("no other checkpoint is whole: remove that checkpoint, and --resume begins anew")
    assert hashes(tmp_path / "tuned") == before
