"""Processes begin with what is imported ahead, and with variables that they could not set for themselves."""

import subprocess
import sys

import pytest

from mabert.processes import METHOD

PROGRAM = """
import os, sys
from mabert.bench.worker import ALLOCATION
from mabert.processes import context

def tell(pipe):
    pipe.send([os.environ.get(name) for name in ALLOCATION] + ["colorsys" in sys.modules])

if __name__ == "__main__":
    chosen = context("colorsys", **ALLOCATION)
    here, there = chosen.Pipe()
    process = chosen.Process(target=tell, args=(there,))
    process.start()
    print(here.recv(), [os.environ.get(name) for name in ALLOCATION])
    process.join()
"""


@pytest.mark.skipif(METHOD != "forkserver", reason="each process imports for itself here")
@pytest.mark.parametrize("already", [None, "glibc.malloc.hugetlb=0"])
def test_processes_begin_with_what_they_are_given(tmp_path, monkeypatch, already):
    if already is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", already)
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True)
    expected = already or "glibc.malloc.hugetlb=1"
    assert done.stdout.strip() == f"{[expected, True]} {[already]}", done.stderr
