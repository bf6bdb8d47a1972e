"""`mabert report`: compares measurements with the paper on one page."""

import argparse
from pathlib import Path
from typing import Any

from mabert.cli.command import command, say


def add_report(commands: Any) -> None:
    """The report."""
    added = command(commands, "report", run_report, "compare studies and measurements with the paper, claim by claim")
    added.add_argument("paths", nargs="+", metavar="PATH", help="JSON results, or folders to search for them")
    added.add_argument(
        "-o",
        "--output",
        default="report.html",
        help="page to write, with a .md file and a folder beside it [%(default)s]",
    )


def run_report(options: argparse.Namespace) -> None:
    """`mabert report`."""
    from mabert_lab.report.sources import find
    from mabert_lab.report.whole import write_report

    found = find(options.paths)
    page, text, *others = write_report(found, Path(options.output))
    for reason in found.left_out:
        say(f"left out: {reason}")
    say(f"{page}: the report")
    say(f"{text}: the same as Markdown")
    say(f"{page.with_suffix('')}: {len(others)} files, figures as .svg and all numbers as .csv")
