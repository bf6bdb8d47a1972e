"""The options that `mabert embed`, `predict` and `fill-mask` share."""

import io
import sys

import pytest

from mabert.cli import parse
from mabert.cli.texts import how_of


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
