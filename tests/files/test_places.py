"""A teacher in a package: only its data is taken out, and its weights are those that are known."""

import errno
import hashlib
import importlib.metadata
import re
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError

import mabert
from mabert import cli
from mabert.conversion.pieces import read_pairs
from mabert.data.corpus import parse_sources
from mabert.data.glue import load_glue
from mabert.data.own import load_own
from mabert.data.tasks import Columns
from mabert.data.tokenizer import make_tokenizer
from mabert.files import places
from mabert.files.places import Package, default_cache, find, folder_of, is_hub_name
from mabert.files.writing import check_output
from mabert.opening.opened import extend
from mabert.train.folder import RunFolder
from mabert.train.recipe import DataRecipe
from tests.conversion.helpers import PAIR
from tests.train.helpers import tokenizer

WEIGHTS = b"weights of a teacher"
HUB_NAME = "someone/teacher"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs a package whose archive has these members; the hub is out of reach."""
    monkeypatch.setenv("MABERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", Mock(side_effect=OSError("no connection")))
    package = Package("a-teacher", "inside/model.zip", hashlib.sha256(WEIGHTS).hexdigest(), "mit")
    monkeypatch.setattr(places, "PACKAGES", {HUB_NAME: package})

    def install(members):
        (tmp_path / "inside").mkdir()
        with zipfile.ZipFile(tmp_path / "inside/model.zip", "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)

        there = {"a-teacher": SimpleNamespace(locate_file=tmp_path.joinpath)}
        monkeypatch.setattr(importlib.metadata, "distribution", there.__getitem__)

    return install


MEMBERS = {"config.json": b"{}", "model.safetensors": WEIGHTS, "1_Pooling/config.json": b"{}", "README.md": b"hello"}


@pytest.mark.parametrize("name", [HUB_NAME, "a-teacher"])
def test_its_data_and_card_alone_are_unpacked_once_into_the_cache(installed, tmp_path, name):
    code = {"model.py": b"import os", "pytorch_model.bin": b"pickle", "a/b.pkl": b"pickle", "x.md": b""}
    outside = dict.fromkeys(("../../../escaped.json", f"{tmp_path}/absolute.json", "a/../../up.json"), b"{}")
    installed({**MEMBERS, **code, **outside})
    place = folder_of(name)
    assert place.is_relative_to(tmp_path / "cache")
    files = {str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*") if file.is_file()}
    assert files == MEMBERS, "no code, no pickle, and nothing outside"
    assert not [file for each in ("escaped", "absolute", "up") for file in tmp_path.rglob(f"{each}.json")]
    (tmp_path / "inside/model.zip").unlink()
    assert folder_of(name) == place


def test_several_that_ask_at_once_unpack_it_once(installed, monkeypatch):
    installed(MEMBERS)
    unpack = places.unpack
    slowly = Mock(side_effect=lambda *given: time.sleep(0.2) or unpack(*given))
    monkeypatch.setattr(places, "unpack", slowly)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(folder_of, [HUB_NAME] * 4))
    assert len(set(found)) == slowly.call_count == 1
    assert (found[0] / "model.safetensors").read_bytes() == WEIGHTS


def test_other_weights_are_refused_and_leave_nothing(installed, tmp_path):
    installed({**MEMBERS, "model.safetensors": b"other weights"})
    with pytest.raises(
        ValueError, match=r"the weights in .*model\.zip have SHA-256 [0-9a-f]{64}; those known have"
    ) as no:
        folder_of(HUB_NAME)
    assert "\n" not in str(no.value)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


@pytest.mark.parametrize("broken", ["none", "no zip", "no weights"])
def test_a_damaged_package_is_one_line(installed, tmp_path, broken):
    installed({"config.json": b"{}"})
    if broken == "none":
        (tmp_path / "inside/model.zip").unlink()
    elif broken == "no zip":
        (tmp_path / "inside/model.zip").write_bytes(b"no archive")
    with pytest.raises((ValueError, OSError), match=r"a-teacher|model\.(zip|safetensors)") as refused:
        folder_of(HUB_NAME)
    assert "\n" not in str(refused.value)


def test_where_it_is_not_installed_the_line_says_how_it_is(installed, monkeypatch):
    missing = importlib.metadata.PackageNotFoundError("a-teacher")
    monkeypatch.setattr(importlib.metadata, "distribution", Mock(side_effect=missing))
    with pytest.raises(FileNotFoundError, match=r"no model 'someone/teacher': .*; `pip install a-teacher` brings it"):
        folder_of(HUB_NAME)
    with pytest.raises(
        FileNotFoundError, match=r"no model 'owner/other': neither a folder here nor .* hub: no connection$"
    ):
        folder_of("owner/other")


GATED = GatedRepoError(
    "401 Client Error.\n\nAccess to model owner/other is restricted.",
    response=SimpleNamespace(headers={}, request=None),
)
LATE = LocalEntryNotFoundError("Please check your internet connection")
LATE.__cause__ = TimeoutError()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (GATED, r"no model 'owner/other': .* the hub: 401 Client Error\. Access to model owner/other is restricted\.$"),
        (LATE, r"no model 'owner/other': .* the hub: TimeoutError$"),
        (OSError(errno.ENOSPC, "No space left on device"), r"cannot save .*: No space left on device; .* free"),
    ],
)
def test_the_line_says_why_the_hub_gives_nothing(installed, monkeypatch, error, told):
    monkeypatch.setattr("huggingface_hub.snapshot_download", Mock(side_effect=error))
    with pytest.raises(OSError, match=f"^{told}"):
        folder_of("owner/other")


def test_weights_are_left_on_the_hub_where_nobody_needs_them(monkeypatch, tmp_path):
    def give(name, allow_patterns, **options):
        asked.append(set(allow_patterns))
        return tmp_path

    asked = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", give)
    assert folder_of("owner/other") == folder_of("owner/other", weights=False) == tmp_path
    assert asked[0] - asked[1] == {"*.safetensors"}


def test_a_folder_of_that_name_comes_first(installed, tmp_path):
    (tmp_path / HUB_NAME).mkdir(parents=True)
    assert folder_of(HUB_NAME) == Path(HUB_NAME)


def test_a_home_is_found_and_no_name_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not is_hub_name("~/mine")
    with pytest.raises(FileNotFoundError, match=rf"^no model folder {tmp_path / 'mine'} "):
        find("~/mine")
    with pytest.raises(FileNotFoundError, match=r"^no model folder ~nobody-here/mine "):
        find("~nobody-here/mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.json").write_text("{}")
    assert find("~/mine").path == tmp_path / "mine"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").rename("~mine")
    assert find("~mine").path == Path("~mine")


@pytest.mark.parametrize(
    "asked",
    [
        lambda there: DataRecipe(cache=there).folder.stat(),
        lambda there: default_cache().stat(),
        parse_sources,
        lambda there: load_own({"train": there}, Columns("text", label="label")),
        lambda there: load_glue("cola", there),
        lambda there: read_pairs([there], tokenizer(), ("a", "b"), frame=PAIR, length=32, tokens=9, held_out=1, seed=0),
    ],
    ids=["a cache", "the usual cache", "texts", "rows", "GLUE", "pairs"],
)
def test_a_home_is_found_wherever_a_path_is_named(asked, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MABERT_CACHE", "~/there.csv")
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "there.csv"))):
        asked("~/there.csv")


@pytest.mark.parametrize(
    "written",
    [
        lambda there: mabert.export("minilm", there),
        lambda there: extend("minilm", 600, there),
        lambda there: make_tokenizer([], there),
        lambda there: RunFolder(there).check({}),
        lambda there: check_output(cli.parse(["embed", "m", "-o", there]).output, (".jsonl",)),
    ],
    ids=["an export", "a longer model", "a tokenizer", "a run", "what a command writes"],
)
def test_a_home_is_found_wherever_something_is_written(written, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("mabert.machine.environment.find_spec", lambda package: object())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.jsonl").mkdir()
    (tmp_path / "there.jsonl/mine").touch()
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "there.jsonl"))):
        written("~/there.jsonl")
