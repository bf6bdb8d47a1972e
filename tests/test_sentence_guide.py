"""The guide to sentence-transformers: its blocks run one after the other, without a network."""

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from sentence_transformers import CrossEncoder

import mabert
from mabert import MaBertForMaskedLM
from mabert.data.tokenizer import load_tokenizer
from mabert.files.places import SHIPPED
from tests.model.helpers import saved

GUIDE = Path(__file__).parents[1] / "docs/sentence-transformers.md"
TITLES = ("Open a folder", "Train vectors", "Rerank", "Sparse vectors (SPLADE)", "MTEB")


def blocks():
    """The guide's programs by the titles above them."""
    _, *parts = re.split(r"^## (.*)$", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    programs = [re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0] for text in parts[1::2]]
    return dict(zip(parts[::2], programs, strict=True))


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The folders that the guide begins with, and an offline hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    shutil.copytree(SHIPPED / "minilm", "minilm-folder")
    saved(MaBertForMaskedLM, "masked-lm-folder", load_tokenizer(SHIPPED / "minilm"), max_position_embeddings=64)


def test_the_guide_has_a_program_for_each_use():
    assert tuple(blocks()) == TITLES


pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # those of other libraries' trainers
    pytest.mark.skipif(find_spec("all_minilm_l6_v2") is None, reason="all-MiniLM-L6-v2 is not installed"),
]


def ran(titles, capsys):
    """Runs programs; returns their names, and what they print beside what the trainers do."""
    names, programs = {}, blocks()
    for title in titles:
        exec(programs[title], names)
    return names, [line for line in capsys.readouterr().out.splitlines() if "train_runtime" not in line]


@pytest.mark.slow
def test_its_programs_run(folders, capsys):
    _, (vectors, best, scores, sparse) = ran(TITLES[:-1], capsys)
    assert vectors == "(2, 64)"
    assert best in ("0", "1")
    assert sparse.startswith("torch.Size([2, ")
    pair = ("bread", "flour salt oven")
    raw = CrossEncoder("reranker").predict([pair], activation_fn=torch.nn.Identity())[0]
    (ours,) = mabert.load("reranker").predict([pair[0]], [pair[1]], progress=False)
    assert scores == str([ours])
    assert ours["score"] == pytest.approx(float(raw), abs=1e-4)


@pytest.mark.slow
def test_mteb_runs_a_task_of_local_data(folders, capsys):
    pytest.importorskip("mteb", reason="MTEB is not installed")
    _, lines = ran(TITLES[:3] + TITLES[4:], capsys)
    assert -1 <= float(lines[-1]) <= 1
