"""Makes the table of docs/clients.md from tests that run here: `make clients`, or `python -m tests.clients`.

`tests/clients.yaml` has the rows: what a client does with MaBERT, and the tests that show it. If all of these pass, the
table is written with the versions that are installed. If one does not, the page stays as it was.
"""

import datetime
import os
import platform
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import pytest
import yaml

TESTS = Path(__file__).parent
ROWS = TESTS / "clients.yaml"
PAGE = TESTS.parent / "docs/clients.md"
BEGIN, END = "<!-- the table is made by `make clients` from tests/clients.yaml -->", "<!-- the end of the table -->"
HEAD = ("client", "package", "works", "limits and workarounds", "tests that ran")
QUIET = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "HAYSTACK_TELEMETRY_ENABLED": "False"}
"""Variables that keep the clients off the network."""
NONE = (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED)
"""What pytest returns where there is no such test."""


@dataclass(frozen=True)
class Client:
    """A row: tool, package of that version, what works, tests that show it (file or file::test), and what does not."""

    tool: str
    package: str
    works: str
    tests: list[str]
    limits: str = "-"


def read(rows: Path) -> list[Client]:
    """Returns the clients of a data file."""
    return [Client(**row) for row in yaml.safe_load(rows.read_text(encoding="utf-8"))]


@cache
def passed(tests: Path, test: str) -> int:
    """Runs a test below a folder, or all tests of a file; returns how many passed.

    Raises:
        ValueError: If one failed or was skipped, or if there is none.
    """
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "--junit-xml", str(report), str(tests / test)]
        done = subprocess.run(command, cwd=TESTS.parent, env={**os.environ, **QUIET}, capture_output=True, check=False)
        suite = next(ElementTree.parse(report).iter("testsuite")).attrib if report.exists() else {}
    if done.returncode not in (0, *NONE) or int(suite.get("errors", 0)):
        raise ValueError(f"{test} failed")
    if int(suite.get("skipped", 0)):
        raise ValueError(f"{test} was skipped")
    if done.returncode:
        raise ValueError(f"{test} is not there")
    return int(suite["tests"])


def line(client: Client, tests: Path) -> str:
    """Runs a client's tests below a folder; returns its line of the table.

    Raises:
        PackageNotFoundError: If the client is not installed.
        ValueError: If not all of its tests passed.
    """
    version, ran = metadata.version(client.package).partition("+")[0], Counter[str]()
    for test in client.tests:
        ran[test.partition("::")[0]] += passed(tests, test)
    counts = "; ".join(f"`{file}`: {count} passed" for file, count in ran.items())
    return f"| {client.tool} | {client.package} {version} | {client.works} | {client.limits} | {counts} |"


def main(rows: Path = ROWS, page: Path = PAGE, tests: Path = TESTS) -> int:
    """Runs the tests of a data file, and writes the table between the two marks of a page; returns the exit status."""
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for client in read(rows):
        try:
            lines.append(line(client, tests))
        except (metadata.PackageNotFoundError, ValueError) as why:
            sys.stderr.write(f"{client.tool}: {why}; {page.name} stays as it was\n")
            return 1
        sys.stdout.write(lines[-1] + "\n")
    system = f"{platform.system()} {platform.machine()}"
    made = f"Made on {datetime.date.today()} with Python {platform.python_version()} on {system}, on a CPU."
    above, rest = page.read_text(encoding="utf-8").split(BEGIN)
    table = "\n".join([BEGIN, "", *lines, "", made, "", END])
    page.write_text(above + table + rest.split(END)[1], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
