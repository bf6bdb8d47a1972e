"""What a file's content is known by."""

from mabert.files import reading


def test_digest_follows_the_content_and_samples_large_files(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    path.write_bytes(b"x" * 1000)
    first = reading.digest(path)
    path.write_bytes(b"x" * 999 + b"y")
    assert reading.digest(path) != first
    monkeypatch.setattr(reading, "_BLOCK", 4)
    monkeypatch.setattr(reading, "_WHOLE_DIGEST_LIMIT", 256)
    sampled = reading.digest(path)
    path.write_bytes(b"z" + b"x" * 998 + b"y")
    assert reading.digest(path) != sampled
    path.write_bytes(b"x" * 998 + b"zy")
    assert reading.digest(path) != sampled
