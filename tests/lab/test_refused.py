"""Options of the lab's commands that cannot be used, or would not be looked at, are refused in one line."""

import pytest

from mabert_lab import cli


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("bench lengths --models bert:mkl", "there is no engine 'mkl' for 'bert:mkl'"),
        ("bench lengths --texts reviews.jsonl", "--texts is 'reviews.jsonl'; it must be NAME=FILE"),
        ("bench retrieval", "bench retrieval has no model; name one folder or several"),
        ("bench retrieval m", "bench retrieval has no data; name a file or folder of documents"),
        ("bench retrieval m --data gone.txt", "gone.txt: no such file or folder"),
        ("bench retrieval m --data x --quick", "--quick goes with measurements of speed, not with bench retrieval"),
        ("study drift model --texts a.txt --data glue", "--data goes with the CoLA dev set, not with --texts"),
        ("study drift model --text-column body", "--text-column goes with --texts, which is not given"),
        ("study budget --from x", "--from goes with pattern, components, pooling and grid, not with budget"),
        ("study pattern --conversions 2", "--conversions goes with arms that are conversions, and those of pattern"),
        ("study pattern --scale convert", "--scale convert is for conversions; give --from MODEL as well"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_line_and_nothing_is_written(
    capsys, tmp_path, monkeypatch, command, message
):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command.split(), "-o", "out"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("mabert: ")
    assert message in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())
