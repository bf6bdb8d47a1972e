import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AlbertTokenizer, BigBirdTokenizer

from mabert.data.tokenizer import SPECIAL_TOKENS, checked, fingerprint, load_tokenizer, special_ids, train_wordpiece
from mabert.files.places import SHIPPED

SENTENCE = "The quiet river crossed the Castle, unafraid."


def test_saved_and_loaded_from_every_form_it_is_the_same(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "saved")
    ordered = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    (tmp_path / "vocab.txt").write_text("\n".join(ordered) + "\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "vocab.txt").write_text("\r\n".join(ordered))
    forms = ["saved", "vocab.txt", "saved/tokenizer.json", "folder"]
    loaded = [load_tokenizer(tmp_path / form) for form in forms]
    assert {fingerprint(form) for form in loaded} == {fingerprint(tokenizer)}
    for form in loaded:
        assert form(SENTENCE, "a pair").data == tokenizer(SENTENCE, "a pair").data
        assert special_ids(form) == special_ids(tokenizer)


def test_a_vocabulary_with_capitals_keeps_them(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "[unused1]", "The", "the"]))
    assert load_tokenizer(tmp_path / "vocab.txt").tokenize("The the") == ["The", "the"]
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "[Unused1]", "the"]))
    assert load_tokenizer(tmp_path / "vocab.txt").tokenize("The the") == ["the", "the"]


def test_fingerprint_ignores_padding_and_truncation_but_no_vocabulary(documents, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    used = load_tokenizer(tmp_path)
    used([SENTENCE, "short"], padding=True, truncation=True, max_length=6)
    assert fingerprint(used) == fingerprint(tokenizer)
    assert fingerprint(train_wordpiece(documents, 129)) != fingerprint(tokenizer)


def test_a_tokenizer_file_with_angled_special_tokens(tmp_path):
    names = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "word"]
    backend = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    assert special_ids(load_tokenizer(tmp_path / "tokenizer.json")) == dict(
        zip(("pad", "unk", "cls", "sep", "mask"), range(5), strict=True)
    )


def test_a_tokenizer_without_a_mask_is_refused(tmp_path):
    Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(
        ValueError, match=r"tokenizer\.json: this tokenizer has no cls_token, sep_token, mask_token; all"
    ):
        load_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", b"", r"vocab\.txt: empty"),
        ("vocab.txt", b"[PAD]\n[UNK]\nw\xf6rd", r"vocab\.txt, line 3: not UTF-8: byte 0xf6 at offset 13"),
        ("vocab.txt", b"[PAD]\n[UNK]\n[CLS]\n", r"vocab\.txt: not a BERT vocabulary: it has no \[SEP\], \[MASK\]"),
        ("vocab.txt", b"[PAD]\nthe\nthe\n", r"vocab\.txt, line 3: token 'the' is already on line 2"),
        ("vocab.txt", b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n", r"vocab\.txt: this tokenizer has no words: "),
        ("tokenizer.json", b"{", r"tokenizer\.json: not a tokenizer\.json: "),
        ("model.bin", b"x", r"model\.bin: not a tokenizer; name a vocab\.txt"),
        ("tokenizer_config.json/", b"{", r"not a readable tokenizer: "),
    ],
)
def test_bad_files_get_one_clear_line(tmp_path, name, content, message):
    path = tmp_path / name.rstrip("/")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        load_tokenizer(tmp_path if name.endswith("/") else path)
    assert "\n" not in str(error.value)


def test_the_one_that_comes_along_goes_by_its_name():
    assert fingerprint(load_tokenizer("minilm")) == fingerprint(load_tokenizer(SHIPPED / "minilm"))


def test_missing_tokenizers(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json, tokenizer_config\.json or vocab\.txt in this"):
        load_tokenizer(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"vocab\.txt: no such file"):
        load_tokenizer(tmp_path / "vocab.txt")
    with pytest.raises(FileNotFoundError, match="no such file or folder; name a ") as error:
        load_tokenizer(tmp_path / "nothing" / "here")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [AlbertTokenizer, BigBirdTokenizer])
def test_what_transformers_leaves_out_of_albert_and_bigbird_is_there(kind, tmp_path):
    special = ["<pad>", "</s>", "<s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*((token, 0.0) for token in special), ("\N{LOWER ONE EIGHTH BLOCK}river", -1.0)]
    kind(vocab=pieces).save_pretrained(tmp_path)
    for tokenizer in (checked(kind(vocab=pieces), "made"), load_tokenizer(tmp_path)):
        assert type(tokenizer) is kind
        assert tokenizer("river", "river")["token_type_ids"] == [0, 0, 0, 1, 1]
        spaced, broken = (tokenizer(f"river{between}river")["input_ids"] for between in (" ", "\n"))
        assert broken == spaced
        assert tokenizer.unk_token_id not in broken
