"""The programs of docs/many-machines.md: each row of a corpus once, and what is finished is not done again."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mabert
from tests.patience import HANG

PAGE = (Path(__file__).parents[1] / "docs/many-machines.md").read_text(encoding="utf-8")
TEXTS = [f"{word} stands {place} doors from the river" for place in range(5) for word in ("a tree", "the old house")]
PER_FILE = 2

pytestmark = pytest.mark.slow


def program(language, mark):
    """The one block of the page in a language that has a mark in it."""
    (block,) = (block for block in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if mark in block)
    return block


def corpus(folder, files):
    (folder / "texts").mkdir()
    for start in range(0, files * PER_FILE, PER_FILE):
        rows = {"id": range(start, start + PER_FILE), "text": TEXTS[start : start + PER_FILE]}
        pq.write_table(pa.table({"id": list(rows["id"]), "text": rows["text"]}), folder / f"texts/{start:02}.parquet")


def run(folder, *command):
    """Runs a command with this environment's Python and `mabert`, on a machine that others may have filled."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "PYSPARK_PYTHON": sys.executable, "RAY_memory_monitor_refresh_ms": "0"}
    done = subprocess.run(command, cwd=folder, env={**os.environ, **own}, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr


def twice(folder, *command, block, files=5):
    """Runs a command, removes a block as a kill would have left it out, and runs the command again."""
    corpus(folder, files)
    run(folder, *command)
    blocks = sorted((folder / "vectors").iterdir())
    before = {kept: kept.stat().st_mtime_ns for kept in blocks}
    lost = folder / "vectors" / block
    shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    run(folder, *command)
    after = {kept: kept.stat().st_mtime_ns for kept in sorted((folder / "vectors").iterdir())}
    assert after.keys() == before.keys()
    assert [kept.name for kept in blocks if after[kept] != before[kept]] == [block]


def check(rows, files=5):
    """Every row is there once, with the vector that one process gives."""
    assert sorted(row["id"] for row in rows) == list(range(files * PER_FILE))
    expected = mabert.load("minilm").embed(TEXTS, progress=False)
    for row in rows:
        np.testing.assert_allclose(row["vector"], expected[row["id"]], atol=1e-5)


def test_ray_embeds_each_row_once_and_leaves_finished_files_alone(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    (tmp_path / "program.py").write_text(program("python", "import ray"))
    twice(tmp_path, sys.executable, "program.py", block="08.parquet")
    check([row for file in (tmp_path / "vectors").glob("*.parquet") for row in pq.read_table(file).to_pylist()])


def test_spark_embeds_each_row_once_and_leaves_finished_blocks_alone(tmp_path):
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    if shutil.which("java") is None:
        pytest.skip("PySpark needs Java, which is not installed")
    (tmp_path / "program.py").write_text(program("python", "import SparkSession"))
    twice(tmp_path, sys.executable, "program.py", block="000004")
    check([row for file in (tmp_path / "vectors").glob("*/*.parquet") for row in pq.read_table(file).to_pylist()])


@pytest.mark.skipif(sys.platform == "win32", reason="the lines are a POSIX shell's")
def test_the_shell_embeds_each_row_once_and_leaves_finished_files_alone(tmp_path):
    twice(tmp_path, "sh", "-c", program("sh", "xargs"), block="02.parquet.npy", files=2)
    vectors = np.concatenate([np.load(file) for file in sorted((tmp_path / "vectors").glob("*.npy"))])
    check([{"id": place, "vector": vector} for place, vector in enumerate(vectors)], files=2)
