"""BERT (Devlin et al., 2019)."""

from mabert.baselines.family import Family


class Bert(Family):
    """The original encoder: full attention, learned positions."""

    name, title, model_type, hub = "bert", "BERT", "bert", "google-bert/bert-base-uncased"
