"""What is written is there whole or not at all, and what was there before stays until then."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file

from mabert.files.writing import CannotSaveError, filling, make_once, saving, whole_file, whole_folder, write_text


def half(writing, begin):
    """Begins to write, and fails."""
    with writing as place:
        begin(place)
        raise OSError("full")


def test_a_file_replaces_the_old_one_when_it_is_whole(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old, \u00e9")
    assert path.read_bytes() == "old, \u00e9".encode()
    with pytest.raises(OSError, match="full"):
        half(whole_file(path), lambda file: file.write(b"new"))
    assert path.read_text(encoding="utf-8") == "old, \u00e9"
    with whole_file(path) as file:
        file.write(b"new")
        assert path.read_text(encoding="utf-8") == "old, \u00e9"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path], "nothing else is left"


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, on_disk = tmp_path / "a.txt", []

    def sync(number):
        (beside,) = tmp_path.iterdir()
        on_disk.append((beside.read_bytes(), path.exists()))

    monkeypatch.setattr("mabert.files.writing.os.fsync", sync)
    write_text(path, "whole")
    assert on_disk == [(b"whole", False)]
    write_text(path, "a note", lasting=False)
    assert (path.read_text(), len(on_disk)) == ("a note", 1)


def test_two_may_write_the_same_file_and_one_of_them_is_there_whole(tmp_path):
    path = tmp_path / "a.txt"
    with whole_file(path) as one, whole_file(path) as two:
        one.write(b"one")
        two.write(b"two")
    assert path.read_text() in ("one", "two")
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_there_when_it_is_whole(tmp_path):
    path = tmp_path / "made"
    with pytest.raises(OSError, match="full"):
        half(whole_folder(path), lambda folder: (folder / "half").touch())
    assert list(tmp_path.iterdir()) == []
    with whole_folder(path) as folder:
        (folder / "whole").touch()
        assert not path.exists()
    assert [file.name for file in path.iterdir()] == ["whole"]
    assert list(tmp_path.iterdir()) == [path]


def test_the_rest_of_a_folder_that_was_killed_is_removed(tmp_path):
    path = tmp_path / "made"
    with whole_folder(path) as folder:
        name = folder.name
    (tmp_path / name).mkdir()
    (tmp_path / name / "half").touch()
    path.rmdir()
    with whole_folder(path) as folder:
        assert list(folder.iterdir()) == []
        (folder / "all").touch()
    assert [file.name for file in path.iterdir()] == ["all"]


def test_a_folder_within_one_that_is_filled_is_replaced(tmp_path):
    for content in ("old", "new"):
        with filling(tmp_path / "made") as folder:
            (folder / "inside").mkdir()
            (folder / "inside" / content).touch()
    assert [path.name for path in (tmp_path / "made").rglob("*")] == ["inside", "new"]


def test_only_what_fails_in_writing_is_blamed_on_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No such file .*teacher\.json"), filling(tmp_path / "new"):
        (tmp_path / "teacher.json").read_text()
    with pytest.raises(FileNotFoundError, match=r"^no model here$"), filling(tmp_path / "new"):
        raise FileNotFoundError("no model here")
    for place in ("new/part/a", "new/.saving/a", ".saving/new/a"):
        with (
            pytest.raises(CannotSaveError, match=rf"^cannot save {tmp_path / 'new'}: No such"),
            saving(tmp_path / "new"),
        ):
            (tmp_path / place).write_text("")
    with pytest.raises(CannotSaveError, match=r"^cannot save .*: of a file that is open"), saving(tmp_path / "new"):
        raise OSError(errno.EIO, "of a file that is open")
    (tmp_path / "file").touch()
    with (
        pytest.raises(CannotSaveError, match=r"^cannot save .*/file/new: Not a directory; name another place$"),
        filling(tmp_path / "file/new"),
    ):
        pass


def test_a_cache_that_may_only_be_read_serves_and_one_that_cannot_be_made_is_one_line(tmp_path, monkeypatch):
    make_once(tmp_path / "cache/made", lambda folder: (folder / "whole").touch())
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=PermissionError(errno.EACCES, "denied", tmp_path / "cache")))
    make_once(tmp_path / "cache/made", Mock(side_effect=AssertionError("it is there")))
    told = rf"^cannot save {tmp_path}/cache: denied; name another cache by MABERT_CACHE, or in a recipe by data\.cache$"
    with pytest.raises(CannotSaveError, match=told):
        make_once(tmp_path / "cache/other", Mock())


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("writing", [filling, whole_folder])
@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_who_may_read_the_other_files_of_a_folder_may_read_the_weights(tmp_path, writing, umask):
    before = os.umask(umask)
    try:
        with writing(tmp_path / "made") as folder:
            save_file({"weight": torch.ones(1)}, folder / "model.safetensors")
            (folder / "config.json").touch()
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "made").iterdir()}
    assert modes == dict.fromkeys(modes, 0o666 & ~umask)
