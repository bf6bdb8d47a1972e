import errno
import os
import shutil
from unittest.mock import Mock

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets.arrow_writer import ArrowWriter

from mabert.data.corpus import HubSource, read_documents
from mabert.files.reading import digest


@pytest.fixture
def hub(tmp_path, prepared_here):
    """A data set in a folder, read by the library as one of the hub is: two configurations, one with two splits."""
    folder = tmp_path / "set"
    for place, texts in {
        "en/train": ["first", "second", "", "fourth", "fifth"],
        "en/test": ["held out"],
        "de/train": ["erster"],
    }.items():
        path = folder / f"{place}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"text": texts, "title": [f"T{i}" for i in range(len(texts))]}), path)
    (folder / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: en\n  data_files:\n  - {split: train, path: en/train.parquet}\n"
        "  - {split: test, path: en/test.parquet}\n"
        "- config_name: de\n  data_files:\n  - {split: train, path: de/train.parquet}\n---\n"
    )
    return folder


EVERY = ["first", "second", "fourth", "fifth", "held out"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("en?split=train", EVERY[:-1]),
        ("en?split=test", ["held out"]),
        ("de?split=train", ["erster"]),
        ("en?split=test&text=title", ["T0"]),
        ("en?rows=2", ["first\nsecond", "fourth", "fifth"]),
        ("en?split=train[:2]", ["first", "second"]),
        ("en?split=train+test", EVERY),
        ("en?split=train%2Btest", EVERY),
        ("en?split=all", EVERY),
        ("en?split=test[:50%]+train[:20%]", ["first"]),
        ("en?split=test+train[:1]", ["held out", "first"]),
    ],
)
def test_config_split_column_and_rows(hub, options, expected):
    assert list(read_documents(f"hub:{hub}:{options}")) == expected
    if not any(mark in options for mark in "[+") and "all" not in options and "%2B" not in options:
        assert list(read_documents(f"hub:{hub}:{options}&streaming=true")) == expected


def test_the_bytes_read_grow_to_the_size_of_the_splits(hub):
    assert list(read_documents(f"hub:{hub}:en")) == EVERY[:-1], "the data set is prepared, so its size is known"
    sizes = [HubSource.parse(f"hub:{hub}:en?split={split}").size() for split in ("train", "test", "train+test")]
    assert sizes[0] + sizes[1] == sizes[2]
    positions = [position for _, position in HubSource.parse(f"hub:{hub}:en?split=all").read()]
    assert positions == sorted(positions)
    assert positions[-1] == sizes[2]


@pytest.mark.parametrize(
    ("split", "files"),
    [
        ("train", ["train"]),
        ("train[:50%]", ["train"]),
        ("train[:1]+train[1:]", ["train"]),
        ("test+train", ["test", "train"]),
        ("train[:50%]+test[:50%]", ["train", "test"]),
        ("all", ["train", "test"]),
        ("no-such-split", ["train", "test"]),
    ],
)
def test_identity_follows_every_file_of_the_splits_that_are_named(hub, split, files):
    expected = [digest(hub / "en" / f"{name}.parquet") for name in files]
    assert HubSource.parse(f"hub:{hub}:en?split={split}").identity()["sha256"] == expected


def test_rows_without_text_are_left_out(hub):
    for split in ("train", "test"):
        pq.write_table(pa.table({"text": ["first", None, "third"], "title": [1, 2, 3]}), hub / f"en/{split}.parquet")
    assert list(read_documents(f"hub:{hub}:en")) == ["first", "third"]
    with pytest.raises(ValueError, match="column 'title' holds 1, not text"):
        list(read_documents(f"hub:{hub}:en?text=title"))


def test_identity_follows_options_and_files(hub):
    def identity(options=""):
        return HubSource.parse(f"hub:{hub}:en{options}").identity()

    assert identity() == identity()
    assert identity() == identity("?streaming=true")
    assert len({str(identity(options)) for options in ("", "?split=test", "?text=title", "?rows=2")}) == 4
    before = identity()
    os.utime(hub / "en" / "train.parquet", (1, 1))
    assert identity() != before
    assert identity()["sha256"] == before["sha256"]
    shutil.copy(hub / "de" / "train.parquet", hub / "en" / "train.parquet")
    assert identity()["sha256"] != before["sha256"]


def test_a_set_of_the_hub_is_known_by_its_commit(hub, monkeypatch):
    load, commit = datasets.load_dataset_builder, ["abc"]

    def from_the_hub(name, config=None, revision=None):
        builder = load(str(hub), config)
        builder.hash = commit[0]
        return builder

    monkeypatch.setattr(datasets, "load_dataset_builder", from_the_hub)
    before = HubSource.parse("hub:other/set:en").identity()
    assert HubSource.parse("hub:other/set:en").identity() == before
    commit[0] = "def"
    assert HubSource.parse("hub:other/set:en").identity() != before


def test_written_form():
    assert HubSource.parse("hub:wikimedia/wikipedia:20231101.en") == HubSource("wikimedia/wikipedia", "20231101.en")
    assert HubSource.parse("hub:bookcorpus").rows == 1000
    assert HubSource.parse("hub:bookcorpus?rows=5&streaming=true&revision=v1") == HubSource(
        "bookcorpus", streaming=True, revision="v1", rows=5
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hub:", "no data set named; write hub:NAME"),
        ("hub:a?splits=train", "unknown option 'splits'; write hub:NAME"),
        ("hub:a?streaming=yes", "streaming is true or false, not 'yes'"),
        ("hub:a?rows=0", "rows is a number of rows from 1 up, not '0'"),
    ],
)
def test_bad_written_forms(source, message):
    with pytest.raises(ValueError, match=message):
        HubSource.parse(source)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("fr", "BuilderConfig 'fr' not found. Available: "),
        ("en?split=dev", "dev"),
        ("en?text=body", r"no column 'body'; there is \['text', 'title'\]"),
        ("de", "(?i:parquet)"),
    ],
)
def test_what_cannot_be_read_gets_one_clear_line(hub, options, message):
    (hub / "de/train.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=message) as error:
        list(read_documents(f"hub:{hub}:{options}"))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"hub:{hub}: ")


def test_a_full_disk_is_told_as_one(hub, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(ArrowWriter, "write_table", Mock(side_effect=full))
    with pytest.raises(OSError, match=rf"^hub:{hub}: .*No space left on device"):
        list(read_documents(f"hub:{hub}:en"))


def test_a_script_is_read_from_the_hubs_parquet_conversion(hub, monkeypatch):
    load, revisions = datasets.load_dataset_builder, []

    def published_as_a_script(name, config=None, revision=None, data_dir=None):
        revisions.append(revision)
        if revision is None:
            raise RuntimeError("Dataset scripts are no longer supported, but found bookcorpus.py")
        return load(str(hub), data_dir or "en")

    monkeypatch.setattr(datasets, "load_dataset_builder", published_as_a_script)
    assert list(read_documents("hub:bookcorpus")) == ["first\nsecond\nfourth\nfifth"]
    assert list(read_documents("hub:other/set:de")) == ["erster"]
    assert revisions == [None, "refs/convert/parquet"] * 2


@pytest.mark.parametrize("read", [lambda: list(read_documents("hub:a/b")), lambda: HubSource("a/b").dataset()])
def test_an_unreachable_data_set_is_named_once(monkeypatch, read):
    unreachable = ConnectionError("Couldn't reach 'a/b' on the Hub\n(timeout)")
    monkeypatch.setattr(datasets, "load_dataset_builder", Mock(side_effect=unreachable))
    with pytest.raises(ConnectionError, match=r"^hub:a/b: Couldn't reach 'a/b' on the Hub \(timeout\)$"):
        read()
