"""Answers on disk: all of a file or nothing."""

import json

import numpy as np
import pytest

from mabert.infer.write import check_output, write_rows, write_vectors


def test_what_is_written_is_read_back(tmp_path):
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_vectors(vectors, str(tmp_path / "v.npy"))
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy", allow_pickle=False), vectors)
    write_vectors(vectors, str(tmp_path / "v.jsonl"))
    lines = (tmp_path / "v.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["vector"] for line in lines] == vectors.tolist()
    write_rows([{"text": "naïve"}], str(tmp_path / "r.jsonl"))
    assert (tmp_path / "r.jsonl").read_text(encoding="utf-8") == '{"text": "naïve"}\n'
    assert sorted(file.name for file in tmp_path.iterdir()) == ["r.jsonl", "v.jsonl", "v.npy"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_write_that_is_stopped_leaves_nothing(tmp_path, monkeypatch, stop):
    def rows():
        yield {"text": "a" * 100_000}
        raise stop

    with pytest.raises(type(stop) if isinstance(stop, OSError) else stop):
        write_rows(rows(), str(tmp_path / "r.jsonl"))

    def half(file, array, allow_pickle):
        file.write(b"half of it")
        raise stop

    monkeypatch.setattr(np, "save", half)
    with pytest.raises(type(stop) if isinstance(stop, OSError) else stop):
        write_vectors(np.zeros((2, 3)), str(tmp_path / "v.npy"))
    assert list(tmp_path.iterdir()) == []
    check_output(str(tmp_path / "r.jsonl"), (".jsonl",))
