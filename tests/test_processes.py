"""Processes begin with what is imported ahead, and with variables that they could not set for themselves."""

import subprocess
import sys

import pytest

from mabert.processes import METHOD

PROGRAM = """
import os, sys
from mabert.processes import context

def tell(pipe):
    pipe.send([os.environ.get("A_VARIABLE"), "colorsys" in sys.modules])

if __name__ == "__main__":
    chosen = context("colorsys", A_VARIABLE="given")
    here, there = chosen.Pipe()
    process = chosen.Process(target=tell, args=(there,))
    process.start()
    there.close()
    print(here.recv(), os.environ.get("A_VARIABLE"))
    process.join()
"""


@pytest.mark.skipif(METHOD != "forkserver", reason="each process imports for itself here")
@pytest.mark.parametrize("already", [None, "its own"])
def test_processes_begin_with_what_they_are_given(tmp_path, monkeypatch, already):
    if already is not None:
        monkeypatch.setenv("A_VARIABLE", already)
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == f"{[already or 'given', True]} {already}", done.stderr
