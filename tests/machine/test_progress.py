import errno
import sys

import pytest

from mabert.machine import progress
from mabert.machine.progress import Bar, in_bytes


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds, to set; and no terminal, whatever the environment says."""
    now = [100.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    monkeypatch.setenv("TTY_COMPATIBLE", "0")
    return now


def test_a_line_is_written_after_ten_seconds_and_at_most_one_in_ten(clock, capsys):
    bar, found = Bar("work [/b]", 3000), []
    for now in range(101, 135):
        clock[0] = now
        bar.advance_to(20 * (now - 100), "loss [red]")
        found += [(now, capsys.readouterr())]
    written = [(now, err) for now, (out, err) in found if err or out]
    assert written == [
        (110, "work [/b]  200/3,000  20.00/s  2.3 min left  loss [red]\n"),
        (120, "work [/b]  400/3,000  20.00/s  2.2 min left  loss [red]\n"),
        (130, "work [/b]  600/3,000  20.00/s  2.0 min left  loss [red]\n"),
    ]


@pytest.mark.parametrize(
    ("done", "total", "line"),
    [
        (40, None, "work  40  3.00/s\n"),
        (10, 90, "work  10/90  0.00/s\n"),
        (50, 40, "work  50/40  4.00/s  0.0 min left\n"),
    ],
)
def test_time_left_is_told_where_it_is_known(clock, capsys, done, total, line):
    bar = Bar("work", total, begun=10)
    clock[0] += 10
    bar.advance_to(done)
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize("why", ["a terminal", "not asked for"])
def test_no_line_is_written_in_a_terminal_or_unasked(clock, capsys, monkeypatch, why):
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if why == "a terminal" else "0")
    bar = Bar("work", 2, show=why == "a terminal")
    clock[0] += 60
    bar.advance_to(1)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.ENOSPC, "No space left on device")])
def test_work_goes_on_where_nobody_takes_its_lines(clock, capsys, monkeypatch, error):
    class Stopped:
        def write(self, text):
            raise error

        def flush(self):
            raise error

    bar = Bar("work", 2)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Stopped())
        for _ in range(2):
            clock[0] += 10
            bar.advance_to(1)
    sys.stdout.write("answer")
    assert capsys.readouterr().out == "answer"


@pytest.mark.parametrize("show", [True, False])
def test_bytes_are_told_in_lines_with_a_note(clock, capsys, show):
    with in_bytes("tokenising", 3_000_000, show) as bar:
        bar.advance_to(500_000, "1 M tokens")
        assert capsys.readouterr().err == ""
        clock[0] += 10
        bar.advance_to(1_000_000, "2 M tokens")
        line = "tokenising  1.0 MB/3.0 MB  100.0 kB/s  0.3 min left  2 M tokens\n"
        assert capsys.readouterr() == ("", line if show else "")
