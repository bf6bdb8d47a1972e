"""Importing the package does nothing but define and register; names that are not there are errors."""

import os
import subprocess
import sys

import pytest

import mabert


@pytest.mark.slow
def test_importing_is_quiet_and_light(tmp_path):
    program = (
        "import sys, torch\n"
        "from transformers import PreTrainedModel\n"
        "theirs = set(sys.modules)\n"
        "state, threads = torch.get_rng_state(), torch.get_num_threads()\n"
        "import mabert\n"
        "assert torch.equal(state, torch.get_rng_state()) and threads == torch.get_num_threads()\n"
        "ours = set(sys.modules) - theirs\n"
        "heavy = {'numba', 'triton', 'datasets', 'matplotlib', 'rich.progress', 'sklearn', 'mabert.infer'} & ours\n"
        "print(sorted(heavy))\n"
    )
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment, cwd=tmp_path
    )
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_load_opens_a_model_for_texts_and_other_names_are_no_attributes():
    from mabert.infer.model import load

    assert mabert.load is load
    with pytest.raises(AttributeError, match="module 'mabert' has no attribute 'lode'"):
        mabert.lode  # noqa: B018 -- the attribute is looked up


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert mabert.__version__ == version("mabert")
