"""A model folder opened in 8 bits."""

import numpy as np
import pytest

import mabert
from mabert import MaBertForMaskedLM
from mabert.model.prepack import Int8Linear
from mabert.ops import int8
from tests.infer.conftest import saved

try:
    int8.check()
except ValueError as error:
    pytest.skip(str(error), allow_module_level=True)


def test_a_model_opened_in_8_bits_says_nearly_what_it_says(tmp_path, words):
    wide = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
    folder = saved(MaBertForMaskedLM, tmp_path / "wide", words, **wide)
    texts = ["one text", "another one, a little longer"]
    exact, short = (mabert.load(folder, precision=name) for name in ("fp32", "int8"))
    vectors, near = exact.embed(texts, normalize=True), short.embed(texts, normalize=True)
    assert (vectors * near).sum(1).min() > 0.995
    assert not np.array_equal(vectors, near)
    assert any(isinstance(module, Int8Linear) for module in short._encoder().model.modules())
    assert len(short.fill_mask([f"one {words.mask_token}"])) == 1


def test_what_has_no_8_bits_gets_one_line(masked_lm):
    with pytest.raises(ValueError, match=r"precision is 'int4'; it must be one of \['auto', 'fp32', 'bf16', 'int8'\]"):
        mabert.load(masked_lm, precision="int4")
    with pytest.raises(ValueError, match="int8 gains nothing"):
        mabert.load(masked_lm, precision="int8").embed(["a"])
