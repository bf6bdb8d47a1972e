"""Writes files and folders whole or not at all, however writing ends."""

import contextlib
import errno
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, lock_descriptor

from mabert.files.reading import to_json

WRITING = ".writing"
"""Suffix of what is not whole yet."""

STAGING = ".saving"
"""Folder in which a model or checkpoint is written before its files are moved to their names."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_WORDS = ("no space left", "quota exceeded", "file too large", *(f"os error {number}" for number in _FULL))
"""Words of a full disk's error, for libraries that raise no OSError."""


class CannotSaveError(OSError):
    """Something could not be saved; the message names the path, the cause (`cause`), the `room` needed in bytes, if
    known, and the room free if a disk is full, and how to go on (`advice`); `found` is the message without the
    advice."""

    def __init__(self, path: Path, error: BaseException, room: int = 0, advice: str = "") -> None:
        self.cause = getattr(error, "cause", None) or " ".join((getattr(error, "strerror", None) or str(error)).split())
        self.found = f"cannot save {path}: {self.cause[:200]}"
        helps = "name another place"
        if is_full(error):
            there = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
            needed = f"about {_mebibytes(room)} are needed and " if room else ""
            self.found += f"; {needed}{_mebibytes(shutil.disk_usage(there).free)} are free on that disk"
            helps = "make room and run it again"
        message = f"{self.found}; {advice or helps}"
        super().__init__(getattr(error, "errno", None) or errno.EIO, message, str(path))

    def __str__(self) -> str:
        return str(self.strerror)


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


@contextmanager
def saving(path: str | Path, room: int = 0, advice: str = "") -> Iterator[None]:
    """Raises CannotSaveError for any failure to save a path, but not for one to read something else; takes that
    error's arguments."""
    try:
        yield
    except Exception as error:
        if is_full(error) or _is_of_writing(error, Path(path).absolute()):
            raise CannotSaveError(Path(path), error, room, advice) from error
        raise


def _is_of_writing(error: Exception, path: Path) -> bool:
    """Returns whether an error is one of writing a path, which may be staged beside it, or of making its parents."""
    if not isinstance(error, OSError):  # tokenizers raises a bare Exception, and safetensors an error of its own
        return type(error) is Exception or "os error" in str(error)
    if error.filename is None:
        return error.errno is not None  # a file that is open already
    name = Path(str(error.filename)).absolute()
    return any(name.is_relative_to(place) for place in (path, path.parent / STAGING)) or name in path.parents


@contextmanager
def naming_full_disk(folder: Path, advice: Callable[[], str]) -> Iterator[None]:
    """Raises CannotSaveError if a full disk ends a library's own writing into a folder, such as TensorBoard's log.

    TensorBoard's thread fails first and raises the error again in the next caller, so the thread's own traceback is
    suppressed as a duplicate.
    """
    hook = threading.excepthook
    threading.excepthook = lambda failed: None if failed.exc_value and is_full(failed.exc_value) else hook(failed)
    try:
        yield
    except Exception as error:
        if is_full(error) and not isinstance(error, CannotSaveError):
            raise CannotSaveError(folder, error, advice=advice()) from error
        raise
    finally:
        threading.excepthook = hook


def is_full(error: BaseException) -> bool:
    """Returns whether a full disk, a quota or a limit on file size ended a write, in any library's words."""
    return getattr(error, "errno", None) in _FULL or any(word in str(error).lower() for word in _FULL_WORDS)


@contextmanager
def filling(folder: str | Path, room: int = 0, advice: str = "") -> Iterator[Path]:
    """Yields a folder to write files in, which are moved into `folder` if the block ends without an error. If they
    cannot be written, `folder` keeps its old files, and CannotSaveError is raised with these arguments."""
    folder = Path(folder)
    staging = folder / STAGING
    try:
        with saving(folder, room, advice):
            folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir()
            yield staging
            let_others_read(staging)
            for file in staging.iterdir():
                place = folder / file.name
                if place.is_dir():  # unlike a file, a folder is not replaced by a move
                    shutil.rmtree(place)
                file.replace(place)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def let_others_read(folder: Path) -> None:
    """Gives weights in a new folder the permissions that new files usually get: safetensors 0.8 keeps them private."""
    for file in folder.rglob("*.safetensors"):
        file.chmod(folder.stat().st_mode & 0o666)


def locked(path: str | Path) -> FileLock:
    """Makes a lock that ends with the process that holds it; a file system without locks is an error.

    A plain file as the lock would survive a crash of the machine, and what it guards would stay locked.
    """
    return FileLock(path, fallback_to_soft=False)


@contextmanager
def whole_file(path: str | Path, *, lasting: bool = True) -> Iterator[BinaryIO]:
    """Opens a file that gets its name when the block ends without an error; otherwise an older file of that name stays.
    If it is `lasting`, it survives a loss of power, which means waiting for the disk.

    Raises an OSError that names the file if it cannot be written; a CannotSaveError if the disk is full.
    """
    path = Path(path)
    beside, file = _new_beside(path)
    try:
        with file:
            yield file
            if lasting:
                file.flush()
                os.fsync(file.fileno())  # else the name may reach the disk before the content
            beside.replace(path)
    except OSError as error:
        if is_full(error):
            raise CannotSaveError(path, error) from error
        if str(error.filename) == str(beside):
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):  # the file is gone, or the error being raised says more
            beside.unlink()


def _new_beside(path: Path) -> tuple[Path, BinaryIO]:
    """Opens and locks a new file beside another, and removes those that killed processes left there.

    Several processes, even on several machines, may write the same file; each uses a name of its own until the file is
    whole, and a lock that ends with the process.
    """
    begin = f".{path.name}."
    while True:
        beside = path.with_name(f"{begin}{secrets.token_hex(4)}{WRITING}")
        try:
            for name in os.listdir(path.absolute().parent):
                if name.startswith(begin) and name.endswith(WRITING):
                    _remove_abandoned(path.with_name(name))
            file = beside.open("wb")
        except OSError as error:
            error.filename = str(path)
            raise
        with contextlib.suppress(OSError):  # without locks in the file system, nothing gets removed
            lock_descriptor(file.fileno())
        if beside.exists():
            return beside, file
        file.close()  # another process removed it as abandoned before it was locked


def _remove_abandoned(beside: Path) -> None:
    """Removes a file if no process is writing it any more."""
    with contextlib.suppress(OSError), beside.open("rb+") as file:
        if lock_descriptor(file.fileno(), blocking=False):
            beside.unlink()


def write_text(path: str | Path, text: str, *, lasting: bool = True) -> None:
    """Writes a file in UTF-8, whole or not at all: a full disk or a kill leaves the old one; see `whole_file`."""
    with whole_file(path, lasting=lasting) as file:
        file.write(text.encode())


def write_json(path: str | Path, value: Any, *, indent: int | None = None, ascii_only: bool = True) -> None:
    """Writes a value as JSON and a line end, whole or not at all; see `to_json` and `write_text`."""
    write_text(path, to_json(value, indent=indent, ascii_only=ascii_only) + "\n")


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """Yields a new folder that gets its name when the block ends without an error; otherwise there is none.

    Only one process at a time may make it, so the caller holds a lock; the remains of a killed process are removed.
    Raises CannotSaveError if the disk is full.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}{WRITING}")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir()
        yield beside
        let_others_read(beside)
        beside.rename(path)
    except Exception as error:
        if is_full(error):
            raise CannotSaveError(path, error) from error
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def make_once(place: Path, fill: Callable[[Path], None]) -> None:
    """Makes a folder of a cache unless it exists. Of several processes that ask at once, the first has `fill` write
    into it, under a temporary name until it is whole, and the others wait. CannotSaveError if it cannot be written."""
    if place.exists():  # also in a cache that may only be read
        return
    with saving(place.parent, advice="name another cache by MABERT_CACHE, or in a recipe by data.cache"):
        place.parent.mkdir(parents=True, exist_ok=True)
        held = locked(place.with_name(f".{place.name}.lock")).acquire()
    with held:
        if not place.exists():
            with whole_folder(place) as folder:
                fill(folder)


def in_use(folder: Path) -> bool:
    """Returns whether there is a file of this name, or a folder that is not empty."""
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


def check_new(folder: str | Path) -> None:
    """Refuses a folder to write that holds files, before the work instead of after it, by ValueError."""
    if in_use(Path(folder)):
        raise ValueError(f"{folder} already holds files; name another folder")


def check_output(output: str | None, suffixes: Sequence[str]) -> None:
    """Refuses an output file that could not be written, before the work instead of after it: by ValueError if its
    suffix is not among those given, or the file exists, FileNotFoundError if its folder does not exist, PermissionError
    if that is not writable."""
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
