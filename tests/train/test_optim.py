"""What weight decay touches."""

import pytest

from mabert import MaBertForMaskedLM
from mabert.train.objective import decay_parameter_names
from tests.model.helpers import config


def test_biases_norms_and_the_recurrence_are_exempt():
    model = MaBertForMaskedLM(config(ssm_direction="bidirectional"))
    decayed = set(decay_parameter_names(model))
    everything = {name for name, _ in model.named_parameters()}
    spared = {name.split(".")[-1] if "norm" not in name else "norm" for name in everything - decayed}
    assert spared == {"bias", "norm", "A_log", "D", "delta_bias"}
    assert {name for name in decayed if "norm" in name or name.endswith("bias")} == set()
    assert "mabert.embeddings.word_embeddings.weight" in decayed
    assert "mabert.layers.0.mixer.cores.0.dt_proj.weight" in decayed
    assert set(decay_parameter_names(model, "nothing")) == everything
    with pytest.raises(ValueError, match="decay_exempt is 'norms'"):
        decay_parameter_names(model, "norms")
