"""A model to fine-tune."""

import pytest
import torch

from mabert import MaBertForMaskedLM
from tests.model.helpers import config
from tests.train.helpers import tokenizer


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """A folder with a model that was never trained; what matters here is the way."""
    folder, words = tmp_path_factory.mktemp("pretrained"), tokenizer()
    torch.manual_seed(1234)
    MaBertForMaskedLM(config(vocab_size=len(words), hidden_size=16, initializer_range=0.1)).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder
