"""Processes begin with what is imported ahead, and with variables that they could not set for themselves."""

import os
import platform
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mabert.machine.processes
from mabert.machine.processes import FreedMemory
from tests.patience import HANG

ALONE = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("processes", {mabert.machine.processes.__file__!r})
processes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(processes)
"""
"""Loads the module without all of mabert."""

PROGRAM = (
    ALONE
    + """
import os

def tell(pipe):
    pipe.send([os.environ.get("A_VARIABLE"), "colorsys" in sys.modules])

if __name__ == "__main__":
    chosen = processes.context("colorsys", A_VARIABLE="given")
    here, there = chosen.Pipe()
    process = chosen.Process(target=tell, args=(there,))
    process.start()
    there.close()
    print(here.recv(), os.environ.get("A_VARIABLE"))
    process.join()
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("already", [None, "its own"])
def test_processes_begin_with_what_they_are_given(tmp_path, monkeypatch, already):
    if already is not None:
        monkeypatch.setenv("A_VARIABLE", already)
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=HANG)
    assert done.stdout.strip() == f"{[already or 'given', True]} {already}", done.stderr


FAULTS = (
    ALONE
    + """
import ctypes, resource
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [ctypes.c_void_p(library.malloc(36 << 20)) for _ in range(3)]  # so large that glibc maps them anew
    for block in blocks:
        ctypes.memset(block, 1, 36 << 20)
    for block in blocks:
        library.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
plain = faults()
processes.keep_freed_memory()
faults()
print(plain, faults())
"""
)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize(
    "told", [{}, {"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}]
)
def test_freed_memory_is_used_again_unless_the_environment_says_otherwise(tmp_path, told):
    (tmp_path / "program.py").write_text(FAULTS)
    quiet = {key: value for key, value in os.environ.items() if key != "GLIBC_TUNABLES" and "THRESHOLD" not in key}
    run = [sys.executable, tmp_path / "program.py"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=HANG, env={**quiet, **told})
    plain, kept = map(int, done.stdout.split())
    pages = (3 * 36 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert plain > pages / 2
    assert (kept > pages / 2) if told else (kept < pages / 20)


class Shrinking(FreedMemory):
    """A process of a given size, which shrinks by what is returned."""

    def __init__(self):
        super().__init__()
        self.library, self.kept, self.needed, self.times = self, 0, 0, 0

    def size(self):
        return self.needed + self.kept

    def malloc_trim(self, _):
        self.kept, self.times = 0, self.times + 1


@given(st.lists(st.tuples(st.integers(100, 1000), st.integers(0, 50)), min_size=2, max_size=200))
def test_a_process_stays_within_twice_what_its_steps_need(steps):
    process = Shrinking()
    for needed, kept in steps:
        process.needed, process.kept = needed, process.kept + kept
        before = process.size()
        process.after_step()
        largest = max(needed for needed, _ in steps) + 50
        assert process.size() <= 2 * largest
        assert process.size() in (before, needed)
    again = Shrinking()
    again.needed = steps[0][0]
    for _ in steps:
        again.after_step()
    assert again.times == 1  # to learn what a step needs


def test_memory_is_returned_where_the_c_library_is_glibc():
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("another C library")
    process = FreedMemory()
    block = bytearray(300 << 20)
    large = process.size()
    del block
    process.after_step()
    assert process.returned
    assert 0 < process.size() < large
