"""The shape of the code: imports run downward only, and the checks that say so are not asleep."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mabert

SOURCE = Path(mabert.__file__).parents[1]


def lint(project):
    """What import-linter says of a copy of the project, with the contracts of pyproject.toml."""
    program = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project / "src")},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def project(tmp_path):
    shutil.copytree(SOURCE, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    shutil.copy(SOURCE.parent / "pyproject.toml", tmp_path)
    return tmp_path


INTRUDERS = {
    "mabert/ops/intruder.py": "import mabert.model",
    "mabert/data/intruder.py": "def late():\n    import mabert.model",
    "mabert/model/intruder.py": "import numba",
    "mabert/train/intruder.py": "import datasets",
    "mabert/infer/intruder.py": "import mabert_lab.bench.turns",
    "mabert/new/__init__.py": "",
    "mabert_lab/bench/intruder.py": "import matplotlib.figure, mabert_lab.study.plan",
    "mabert_lab/report/intruder.py": "import mabert_lab.report.document, torch",
}
BROKEN = {
    "imports run downward only",
    "numba only in ops.cpu",
    "datasets only in data",
    "matplotlib only in report",
    "the library never imports the lab",
    "imports run downward in the lab too",
    "report never imports torch",
}


def test_wrong_imports_and_rooms_of_no_floor_would_be_seen(project):
    """`make check` runs the linter on the project as it is."""
    for file, line in INTRUDERS.items():
        (project / "src" / file).parent.mkdir(exist_ok=True)
        (project / "src" / file).write_text(line + "\n", encoding="utf-8")
    done = lint(project)
    assert done.returncode == 1
    assert {line.partition(" BROKEN")[0] for line in done.stdout.splitlines() if " BROKEN" in line} == BROKEN
    for low, high in (("ops", "model"), ("data", "model")):
        assert f"mabert.{low}.intruder -> mabert.{high}" in done.stdout
    assert "mabert.new" in done.stdout


def imported_at_once(node):
    """Names of the modules that are imported when a module is, not only when a function is called."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield child.module.partition(".")[0]
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imported_at_once(child)


def test_no_import_needs_unix():
    some_systems_lack = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
    for file in SOURCE.rglob("*.py"):
        assert not some_systems_lack & set(imported_at_once(ast.parse(file.read_text()))), file


def test_nothing_reads_pickles_or_unsafe_yaml():
    forbidden = {"pickle.load", "pickle.loads", "yaml.load", "yaml.unsafe_load", "torch.load", "eval", "exec"}
    for file in SOURCE.rglob("*.py"):
        calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)}
        assert not calls & forbidden, file
