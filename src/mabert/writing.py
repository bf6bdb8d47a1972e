"""Files and folders that are there whole or not at all, whatever ends the writing of them."""

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

WRITING = ".writing"
"""How the names end of what is not whole yet."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a disk that takes no more says, without naming a file."""


def locked(path: str | Path) -> FileLock:
    """A file's lock, which ends with the process that holds it; a file system without locks is an error.

    A file in place of a lock would outlive a machine that fails, and what it stands for stay taken.
    """
    return FileLock(path, fallback_to_soft=False)


@contextmanager
def whole_file(path: str | Path, *, lasting: bool = True) -> Iterator[BinaryIO]:
    """A file that gets its name when the block ends without an error; else what had the name before stays.

    Args:
        path: Its name.
        lasting: Whether it must outlive a loss of power, for which the disk is waited for.

    Yields:
        A stream to write to.

    Raises:
        OSError: If it cannot be written; names the file, where the disk is full as well.
    """
    path = Path(path)
    # Several processes, of several machines too, may write the same file; each has a name of its own until it is whole.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}{WRITING}")
    try:
        with beside.open("wb") as file:
            yield file
            if lasting:
                file.flush()
                os.fsync(file.fileno())  # else the name may be on the disk before what it names
        beside.replace(path)
    except OSError as error:
        if str(error.filename) == str(beside) or (error.filename is None and error.errno in FULL):
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):  # it is not there, or the error on the way tells more
            beside.unlink()


def write_text(path: str | Path, text: str, *, lasting: bool = True) -> None:
    """Writes a file, in UTF-8, whole or not at all: a full disk or a kill leaves the old one; see `whole_file`."""
    with whole_file(path, lasting=lasting) as file:
        file.write(text.encode())


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """A new folder that gets its name when the block ends without an error; else there is none.

    One process at a time may make it, as one that holds a lock does: the rest of one that was killed is removed.

    Yields:
        The folder, under another name.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}{WRITING}")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir()
        yield beside
        beside.rename(path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def check_output(output: str | None, suffixes: Sequence[str]) -> None:
    """Refuses a file that could not be written, before the work rather than after it.

    Raises:
        ValueError: If the suffix is not one of those, or the file exists.
        FileNotFoundError: If its folder does not.
        PermissionError: If nobody may write in that.
    """
    if output is None:
        return
    path = Path(output)
    if path.suffix not in suffixes:
        raise ValueError(f"{output} must end in {' or '.join(suffixes)}")
    if path.exists():
        raise ValueError(f"{output} exists already; name another file")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent} to write {path.name} in")
    if not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise PermissionError(f"no permission to write in {path.absolute().parent}, where {path.name} is to be")
