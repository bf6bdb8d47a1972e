"""A command that must be refused in one line, for the tests of every folder."""

import re

from mabert_lab.cli import main

NOTES = re.compile(
    r"(pretraining|tokenising|\S+ seed \d+ lr|Loading weights|Writing model)\b|mabert: (compil|reusing the token|held )"
)
"""Begins of lines that say how far a command is."""


def refusal(capsys, words):
    """Runs a command that must be refused in one line; returns the line."""
    capsys.readouterr()
    try:
        code = main([str(word) for word in words])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    told = [line for line in re.split(r"[\r\n]", err) if line and not NOTES.match(line)]
    assert (code, len(told), out) == (2, 1, ""), told
    assert told[0].startswith("mabert")
    assert len(told[0]) < 1500
    return told[0]
