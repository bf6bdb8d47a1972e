import errno
import io
import itertools
import json
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mabert.data import cache as caching
from mabert.data import corpus
from mabert.data.cache import TokenCache, build_cache
from mabert.data.corpus import pieces_of
from mabert.data.tokenizer import load_tokenizer, train_wordpiece
from mabert.files import tables
from tests.data.conftest import KINDS


@pytest.fixture
def make(tokenizer, tmp_path):
    def make(source, **options):
        return build_cache(source, options.pop("tokenizer", tokenizer), tmp_path / "caches", progress=False, **options)

    return make


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_documents_are_those_of_the_tokenizer(cache, documents, tokenizer):
    expected = [tokenizer(document, add_special_tokens=False)["input_ids"] for document in documents]
    assert [document.tolist() for document in np.split(cache.ids, cache.offsets[1:-1])] == expected
    assert cache.ids.dtype == np.load(cache.folder / "ids.npy").dtype == np.uint16
    assert cache.manifest["tokens"] == len(cache.ids) == sum(map(len, expected))
    assert isinstance(cache.ids, np.memmap)


def cached(tokenizer, texts):
    source = SimpleNamespace(read=lambda: ((text, 0) for text in texts), size=lambda: None)
    with TemporaryDirectory() as folder:
        offsets = caching._write_ids(Path(folder, "ids.npy"), [source], tokenizer, None, progress=False)
        ids = np.load(Path(folder, "ids.npy"))
    return [ids[begin:end].tolist() for begin, end in itertools.pairwise(offsets)]


@settings(max_examples=20)
@given(texts=st.lists(st.text("ab .\n\t\u00e9[MASK]", max_size=300), min_size=1, max_size=4), piece=st.integers(1, 40))
def test_cutting_long_documents_changes_no_token(tokenizer, texts, piece):
    encoder = caching.plain_encoder(tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_PIECE", piece)
        found = cached(tokenizer, texts)
        assert ["".join(pieces_of(text)) for text in texts] == texts
    whole = [encoder.encode(text, add_special_tokens=False).ids for text in texts]
    assert found == [document for document in whole if document]


LINES = st.lists(st.text("ab.\u00e9", min_size=1, max_size=9), min_size=1, max_size=40).map(" ".join)


@settings(max_examples=20)
@given(texts=st.lists(LINES, min_size=1, max_size=3), longest=st.integers(10, 60), batch=st.integers(1, 200))
@pytest.mark.parametrize("name", KINDS)
def test_cutting_long_lines_at_spaces_changes_no_token_of_any_kind_of_tokenizer(trained, name, texts, longest, batch):
    encoder = caching.plain_encoder(trained(name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_PIECE", 5)
        patch.setattr(corpus, "_LONGEST_PIECE", longest)
        patch.setattr(caching, "_BATCH_CHARACTERS", batch)
        found = cached(trained(name), texts)
        pieces = [list(pieces_of(text)) for text in texts]
    assert ["".join(each) for each in pieces] == texts
    assert max(len(piece) for each in pieces for piece in each) <= longest
    whole = [encoder.encode(text, add_special_tokens=False).ids for text in texts]
    assert found == [document for document in whole if document]


def test_a_few_tokens_of_one_long_line_need_little_of_it(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "MOST_CHARACTERS", 1000)
    monkeypatch.setattr(tables, "_BLOCK", 100)
    monkeypatch.setattr(caching, "_BATCH_CHARACTERS", 500)
    (tmp_path / "a.txt").write_text("river castle " * 10_000)
    read = []
    taken = corpus.FileSource.read
    monkeypatch.setattr(corpus.FileSource, "read", lambda self: (read.append(each) or each for each in taken(self)))
    part = build_cache(tmp_path / "a.txt", tokenizer, tmp_path / "c", max_tokens=20, progress=False)
    assert len(part.ids) == 20
    assert all(len(document) <= 1000 for document, _ in read)
    assert len(read) <= 4, "what is encoded, and what is read ahead"


def test_a_large_vocabulary_gets_wider_ids(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(70000))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "a.txt").write_text("w1 w69999\n")
    cache = build_cache(tmp_path / "a.txt", load_tokenizer(tmp_path / "vocab.txt"), tmp_path / "caches", progress=False)
    assert cache.ids.dtype == np.uint32
    assert cache.ids.tolist() == [6, 70004]


@pytest.mark.parametrize("change", ["content", "mtime", "tokenizer", "limit", "format", "path"])
def test_any_change_builds_another_cache(make, documents, tmp_path, monkeypatch, change):
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(documents))
    status = path.stat()
    first, options = make(path), {}
    if change == "content":
        path.write_text("\n\n".join(documents).replace("river", "rover", 1))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert path.stat().st_mtime_ns == status.st_mtime_ns
    elif change == "mtime":
        os.utime(path, (1, 1))
    elif change == "tokenizer":
        options["tokenizer"] = train_wordpiece(documents, 100)
    elif change == "limit":
        options["max_tokens"] = 100_000
    elif change == "format":
        monkeypatch.setattr(caching, "FORMAT", caching.FORMAT + 1)
    else:
        path = path.rename(tmp_path / "b.txt")
    second = make(path, **options)
    assert second.folder != first.folder
    assert TokenCache(first.folder).manifest == first.manifest


@settings(max_examples=20)
@given(limit=st.integers(1, 400), batch=st.sampled_from([100, 500, 10**6]))
def test_a_limit_of_tokens_is_exact_whatever_is_read_at_once(
    tokenizer, cache, text_file, tmp_path_factory, limit, batch
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caching, "_BATCH_CHARACTERS", batch)
        whole = build_cache(text_file, tokenizer, tmp_path_factory.mktemp("c"), progress=False)
        part = build_cache(text_file, tokenizer, tmp_path_factory.mktemp("c"), max_tokens=limit, progress=False)
    assert (whole.folder / "ids.npy").read_bytes() == (cache.folder / "ids.npy").read_bytes()
    assert part.ids.tolist() == cache.ids[:limit].tolist()
    numpys_own = io.BytesIO()
    np.save(numpys_own, cache.ids[:limit])
    assert (part.folder / "ids.npy").read_bytes() == numpys_own.getvalue()
    assert part.offsets[:-1].tolist() == [offset for offset in cache.offsets[:-1] if offset < limit]


@given(fraction=st.floats(0.001, 0.9), seed=st.integers(0, 2**40))
def test_a_split_is_exact_disjoint_and_complete(cache, fraction, seed):
    training, held_out = cache.split(fraction, seed)
    assert held_out.tokens == max(1, round(fraction * len(cache.ids)))
    parts = [
        (int(start), int(stop))
        for part in (training, held_out)
        for start, stop in zip(part.starts, part.stops, strict=True)
    ]
    assert all(start < stop for start, stop in parts)
    covered = np.zeros(len(cache.ids), dtype=int)
    for start, stop in parts:
        covered[start:stop] += 1
    assert (covered == 1).all()
    # Whole documents but one.
    assert len(training) + len(held_out) <= len(cache.offsets)
    again, other = cache.split(fraction, seed)[1], cache.split(fraction, seed + 1)[1]
    assert np.array_equal(again.starts, held_out.starts)
    assert len(held_out) < 5 or not np.array_equal(other.starts, held_out.starts)
    assert (np.diff(training.starts) > 0).all()


def test_a_split_of_one_document_holds_out_its_end(make, tmp_path):
    (tmp_path / "a.txt").write_text("the quiet river " * 100)
    one = make(tmp_path / "a.txt")
    training, held_out = one.split(0.1)
    assert training[0].tolist() + held_out[0].tolist() == one.ids.tolist()
    (tmp_path / "b.txt").write_text("the")
    with pytest.raises(ValueError, match=r"cannot hold out 0\.5 of a corpus of 1 tokens"):
        make(tmp_path / "b.txt").split(0.5)


def test_a_cache_travels_by_its_folder(cache):
    state = pickle.dumps(cache)
    assert len(state) < 3000
    assert pickle.loads(state).ids.tolist() == cache.ids.tolist()


def test_a_failing_source_leaves_nothing(make, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"fine words\n\n" * 10 + b"\xff")
    with pytest.raises(ValueError, match="line 21: not UTF-8: byte 0xff at offset 120"):
        make(tmp_path / "a.txt")
    assert visible(tmp_path / "caches") == []
    (tmp_path / "b.jsonl").write_text('{"text": "\\u0000"}\n')
    with pytest.raises(ValueError, match="no text"):
        make(tmp_path / "b.jsonl")
    assert visible(tmp_path / "caches") == []


@pytest.mark.parametrize("where", [(caching, "write_npy_header"), (os, "fsync")], ids=lambda where: where[1])
def test_a_full_disk_gets_one_clear_line_and_leaves_nothing(make, text_file, tmp_path, monkeypatch, where):
    def full(*_, **__):
        assert [Path(name).suffix for name in visible(tmp_path / "caches")] == [".writing"], "whoever kills it now"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*where, full)
    with pytest.raises(
        OSError, match=r"cannot save .*caches/\w+: No space left on device; .* make room and run it again"
    ) as error:
        make(text_file)
    assert error.value.errno == errno.ENOSPC
    assert visible(tmp_path / "caches") == []
    monkeypatch.undo()
    assert len(make(text_file).ids)


def test_of_two_builders_one_waits_for_the_other(make, text_file, monkeypatch):
    real = caching._build
    build = Mock(side_effect=lambda *given: time.sleep(0.3) or real(*given))
    monkeypatch.setattr(caching, "_build", build)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(make, [text_file, [str(text_file)]])
    assert one.folder == other.folder
    assert build.call_count == 1


def test_damaged_caches_are_named(make, text_file, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"not a token cache \(it has no manifest\.json\)"):
        TokenCache(tmp_path)
    folder = make(text_file).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"tokens": 5}))
    with pytest.raises(ValueError, match="the manifest says 5 and 60; delete this folder and build it again"):
        make(text_file)
    (folder / "ids.npy").write_bytes((folder / "ids.npy").read_bytes()[:-10])
    with pytest.raises(ValueError, match="damaged token cache"):
        TokenCache(folder)
