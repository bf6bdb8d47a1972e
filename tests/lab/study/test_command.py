"""Options of `mabert study` that would not be looked at are refused."""

import pytest

from mabert_lab import cli
from tests.lab.study.helpers import world, written


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["drift", "model", "--texts", "a.txt", "--data", "glue"],
            "--data goes with the CoLA dev set, not with --texts",
        ),
        (["drift", "model", "--text-column", "body"], "--text-column goes with --texts, which is not given"),
    ],
)
def test_an_option_that_would_not_be_looked_at_is_refused(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["study", *arguments, "-o", "out"]) == 2
    assert capsys.readouterr().err == f"mabert: {message}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["finetune.pooling=mean"], "finetune.pooling would change nothing: every arm of the study has its own"),
        (
            ["finetune.max_length=99"],
            "the fine-tuning of map on CoLA: max_length is 99, the model has positions for 24",
        ),
    ],
)
def test_what_cannot_be_run_is_told_before_anything_is(capsys, tmp_path, given, message):
    arguments = written(tmp_path, world(tmp_path), {"map": {"paper": "map", "finetune": {"pooling": "map"}}})
    assert cli.main(["study", *arguments, "-o", str(tmp_path / "root"), *given]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"mabert: {message}")
    assert len(told.splitlines()) == 1
    assert not (tmp_path / "root/cells").exists()
