"""Answers on disk: all of a file or nothing; on standard output: window by window. What the commands say of them."""

import io
import json
import os
import resource
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from mabert.cli import parse
from mabert.cli.texts import how_of
from mabert.files.writing import check_output
from mabert.infer.write import in_a_line, write_rows, write_vectors
from mabert.model import MaBertConfig


def test_what_is_written_is_read_back(tmp_path):
    vectors = np.arange(9, dtype=np.float32).reshape(3, 3)
    windows = [list(vectors[:2]), list(vectors[2:])]
    assert write_vectors(windows, 3, str(tmp_path / "v.npy")) == 3
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy", allow_pickle=False), vectors)
    assert write_vectors(windows, 3, str(tmp_path / "v.jsonl")) == 3
    lines = (tmp_path / "v.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["vector"] for line in lines] == vectors.tolist()
    assert write_rows([[{"text": "naïve"}], [{"text": "b"}]], str(tmp_path / "r.jsonl")) == 2
    assert (tmp_path / "r.jsonl").read_text(encoding="utf-8") == '{"text": "naïve"}\n{"text": "b"}\n'
    assert sorted(file.name for file in tmp_path.iterdir()) == ["r.jsonl", "v.jsonl", "v.npy"]
    assert write_vectors([], 3, str(tmp_path / "none.npy")) == 0
    assert np.load(tmp_path / "none.npy").shape == (0, 3)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError(5, "of reading"), ValueError("a text is too long")])
@pytest.mark.parametrize("name", ["r.jsonl", "v.npy"])
def test_what_is_stopped_leaves_nothing(tmp_path, stop, name):
    def windows():
        yield [np.zeros(3)] * 10_000
        raise stop

    with pytest.raises(type(stop) if isinstance(stop, Exception) else stop) as raised:
        write_vectors(windows(), 3, str(tmp_path / name))
    assert getattr(raised.value, "filename", None) is None, "an error that is not of writing gets no name"
    assert list(tmp_path.iterdir()) == []
    check_output(str(tmp_path / name), (".jsonl", ".npy"))


@contextmanager
def little_room():
    """No file may grow beyond 10,000 bytes, as on a disk that is almost full; that of pytest's own output neither, so
    that it must not say anything meanwhile."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("name", ["r.jsonl", "v.npy"])
def test_a_full_disk_is_named_by_the_file(tmp_path, name):
    with pytest.raises(OSError, match="File too large") as raised, little_room():
        write_vectors([[np.zeros(300)] * 100], 300, str(tmp_path / name))
    assert raised.value.filename == str(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    long = tmp_path / f"{'a' * 250}.jsonl"
    with pytest.raises(OSError, match="File name too long") as raised:
        write_rows([], str(long))
    assert raised.value.filename == str(long)


def test_a_folder_that_nobody_may_write_in_is_found_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK | os.X_OK))
    with pytest.raises(PermissionError, match=rf"no permission to write in {tmp_path}, where r\.jsonl is to be"):
        check_output(str(tmp_path / "r.jsonl"), (".jsonl",))
    check_output(None, (".jsonl",))


class Terminal(io.TextIOWrapper):
    """Standard output in a locale that has no UTF-8."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding="ascii")

    @property
    def shown(self):
        return self.buffer.getvalue().decode()


def test_standard_output_is_utf_8_in_any_locale_and_shown_window_by_window(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    terminal.write("before\n")

    def windows():
        yield [{"text": "naïve"}]
        assert terminal.shown == 'before\n{"text": "naïve"}\n'
        yield [{"text": "b"}]

    assert write_rows(windows(), None) == 2
    assert terminal.shown == 'before\n{"text": "naïve"}\n{"text": "b"}\n'
    monkeypatch.setattr(sys, "stdout", io.StringIO())  # without bytes beneath
    write_rows([[{"text": "naïve"}]], None)
    assert sys.stdout.getvalue() == '{"text": "naïve"}\n'


def test_a_model_without_mamba_layers_has_no_cores_in_its_line():
    assert "Mamba" not in in_a_line(MaBertConfig(layer_pattern="TT"))


@pytest.mark.parametrize("command", ["embed", "predict", "fill-mask"])
def test_help_says_what_a_long_text_does_to_the_work_and_in_what_fine_tuning_computes(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit):
        parse([command, "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "file to write; it appears only when it is complete [JSONL on standard output]" in told
    assert (
        "cut longer texts, instead of stopping at the first one [no; predict: as in fine-tuning, else in windows]"
        in told
    )
    assert "[the precision of the saved weights; auto for a fine-tuned model]" in told


def test_progress_does_not_stand_among_answers_in_the_same_file(monkeypatch, tmp_path):
    """As after `> answers.jsonl 2>&1`, and under `nohup` without a file."""

    def shown(out, err, *options):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            return how_of(parse(["embed", "model", *options])).progress

    with (tmp_path / "a").open("a") as one, (tmp_path / "a").open("a") as same, (tmp_path / "b").open("a") as other:
        assert not shown(one, same)
        assert shown(one, same, "-o", "v.npy")
        assert shown(one, other)
        assert shown(io.StringIO(), same), "in a notebook"
        assert shown(one, None), "there is no standard error"
    with (tmp_path / "a").open("a") as one:
        assert shown(one, other), "standard error is closed"
