"""A full disk is one line wherever it comes, and what is not whole is never offered and does not stay."""

import fcntl
import shutil
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from mabert.files.writing import CannotSaveError, naming_full_disk, saving, write_text
from mabert_lab.cli import main
from tests.bad_input.conftest import hashes

FULL = "No space left on device"
SYSTEM = OSError(28, FULL)
SAFETENSORS = SafetensorError(f"Error while serializing: I/O error: {FULL} (os error 28)")
TOKENIZERS = Exception(f"{FULL} (os error 28)")


def fails(monkeypatch, kind, error, after=0):
    """Lets saving fail half-way, after so many that do not."""
    real, saved = kind.save_pretrained, []

    def save(self, folder, **options):
        saved.append(folder)
        if len(saved) <= after:
            return real(self, folder, **options)
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "half").write_bytes(b"half")
        raise error

    monkeypatch.setattr(kind, "save_pretrained", save)


MODEL, WORDS = (PreTrainedModel, SAFETENSORS), (PreTrainedTokenizerBase, TOKENIZERS)
PRETRAIN = ["pretrain", "MADE/plan.yaml", "-o", "NEW"]
TUNE = ["finetune", "MADE/run", "--train", "MADE/classes.csv", "--epochs", "1", "-o", "NEW"]
EXTEND = ["extend", "MADE/run", "--length", "64", "-o", "NEW"]


@pytest.mark.parametrize(
    ("command", "what", "kind", "after"),
    [
        (PRETRAIN, "/checkpoint-1", WORDS, 0),
        (PRETRAIN, "/checkpoint-2", MODEL, 1),
        *((PRETRAIN, "", kind, 4) for kind in ((PreTrainedModel, SYSTEM), WORDS)),
        *((TUNE, "/seed-0", kind, 0) for kind in (MODEL, WORDS)),
        *((EXTEND, "", kind, 0) for kind in (MODEL, WORDS)),
    ],
)
def test_a_full_disk_names_path_room_and_what_helps_and_nothing_half_stays(
    made, tmp_path, monkeypatch, refused, command, what, kind, after
):
    fails(monkeypatch, *kind, after)
    new = tmp_path / "new"
    told = refused(*(word.replace("MADE", str(made)).replace("NEW", str(new)) for word in command))
    assert f"cannot save {new}{what}: " in told
    assert FULL in told
    assert not list(tmp_path.rglob("half"))
    assert what != "/checkpoint-2" or f"; the last whole checkpoint is {new}/checkpoint-1; " in told
    assert not (new / "model.safetensors").exists(), "the model is there whole or not at all"
    if command is EXTEND:
        assert not list(new.iterdir()), "the same command can be run again"
        return
    assert "MiB are needed and" in told
    assert "MiB are free on that disk" in told
    assert f"make room and {'go on' if command is PRETRAIN else 'train it again'} by --resume" in told


def test_a_file_names_itself_and_the_room(tmp_path, monkeypatch):
    monkeypatch.setattr("mabert.files.writing.os.fsync", Mock(side_effect=SYSTEM))
    with pytest.raises(CannotSaveError, match=rf"cannot save {tmp_path}/a.json: {FULL}; [\d,.]+ MiB are free on"):
        write_text(tmp_path / "a.json", "{}")
    assert not list(tmp_path.iterdir())


def test_an_error_within_an_error_is_told_once(tmp_path):
    with (
        pytest.raises(CannotSaveError, match=rf"^cannot save {tmp_path}: {FULL}; about 3.0 MiB"),
        saving(tmp_path, 3 << 20),
    ):
        raise CannotSaveError(tmp_path / "part", SYSTEM)
    with pytest.raises(RuntimeError, match="a defect"), saving(tmp_path):
        raise RuntimeError("a defect")


def test_a_thread_that_finds_the_disk_full_adds_no_traceback(tmp_path, capsys):
    log = Mock(side_effect=SYSTEM)

    def trains():
        with naming_full_disk(tmp_path, lambda: "this helps"):
            writer = threading.Thread(target=log)
            writer.start()
            writer.join()
            log()

    with pytest.raises(CannotSaveError, match=r"cannot save .*; this helps"):
        trains()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["embed", "predict", "fill-mask", "info", "finetune"])
def test_an_interrupted_run_names_its_newest_checkpoint(run, made, tmp_path, refused, command):
    for name in ("model.safetensors", "config.json"):
        (run / name).unlink()
    shutil.copytree(run / "checkpoint-2", run / ".saving")
    shutil.copytree(run / "checkpoint-4", run / "checkpoint-10")
    more = {"info": [], "finetune": ["--train", made / "classes.csv", "-o", tmp_path / "tuned"]}
    told = refused(command, run, *more.get(command, [made / "classes.csv"]))
    assert told.endswith(f"did you mean {run / 'checkpoint-10'}?")
    (run / "unfinished/seed-0-lr-2e-05").mkdir(parents=True)
    for folder in run.glob("checkpoint-*"):
        folder.rename(run / "unfinished/seed-0-lr-2e-05" / folder.name)
    assert told.replace("run/checkpoint", "run/unfinished/seed-0-lr-2e-05/checkpoint") == refused(
        command, run, *more.get(command, [made / "classes.csv"])
    )
    shutil.rmtree(run / "unfinished")
    assert "did you mean" not in refused(command, run, *more.get(command, [made / "classes.csv"]))


def test_the_next_run_removes_what_a_kill_left(run):
    shutil.copytree(run / "checkpoint-2", run / ".saving")
    left = run / ".result.json.0123abcd.writing"
    left.write_text("half")
    assert main(["pretrain", "any", "-o", str(run), "--resume"]) == 0
    assert not [file for file in run.iterdir() if file.name.startswith(".")]


def test_what_another_process_is_writing_stays(tmp_path):
    theirs = tmp_path / ".a.json.0123abcd.writing"
    with theirs.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_text(tmp_path / "a.json", "{}")
        assert set(hashes(tmp_path)) == {tmp_path / "a.json", theirs}
    write_text(tmp_path / "a.json", "[]")
    assert set(hashes(tmp_path)) == {tmp_path / "a.json"}
