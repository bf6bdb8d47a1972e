"""The table of families: a new baseline needs a file in this folder, which says where it differs from BERT, and a line
here."""

from transformers import PreTrainedConfig

from mabert.baselines.albert import Albert
from mabert.baselines.bigbird import BigBird
from mabert.baselines.deberta import Deberta
from mabert.baselines.family import Bert, Family
from mabert.baselines.longformer import Longformer
from mabert.baselines.mabert import MaBert
from mabert.baselines.modernbert import ModernBert

FAMILIES: dict[str, Family] = {
    family.name: family for family in (Bert(), Albert(), Longformer(), BigBird(), Deberta(), ModernBert(), MaBert())
}
"""Families by name, in the order of the paper's tables."""

_BY_TYPE = {family.model_type: family for family in FAMILIES.values()}


def family_named(name: str) -> Family:
    """Returns a family by its name; raises a ValueError that names the known ones if there is none."""
    if name not in FAMILIES:
        raise ValueError(f"there is no model {name!r}; there are {', '.join(FAMILIES)}")
    return FAMILIES[name]


def family_of(config: PreTrainedConfig) -> Family:
    """Returns the family of a model's configuration; raises ValueError if it belongs to none."""
    if config.model_type not in _BY_TYPE:
        raise ValueError(f"a model of type {config.model_type!r}; there are {', '.join(_BY_TYPE)}")
    return _BY_TYPE[config.model_type]
