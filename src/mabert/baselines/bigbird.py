"""BigBird (Zaheer et al., 2020)."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from mabert.baselines.family import Family


class BigBird(Family):
    """Window, random and global blocks of 64 tokens; full attention for inputs too short for them."""

    name, title, model_type, hub = "bigbird", "BigBird", "big_bird", "google/bigbird-roberta-base"
    keeps_state = True
    unreached = ("pooler.",)
    repeats = True

    def config_of(self, fields: Mapping[str, Any], **of_run: Any) -> PreTrainedConfig:
        config = super().config_of(fields, **of_run)
        config.update(self.longer(config, config.max_position_embeddings))
        return config

    def depends_on_batch(self, config: PreTrainedConfig, lengths: Sequence[int], pooled: bool = True) -> bool:
        # The padded row is divided into blocks, and the last one is global.
        return len(set(lengths)) > 1 and max(lengths) > fully(config)

    def longer(self, config: PreTrainedConfig, length: int) -> dict[str, Any]:
        if length > fully(config):  # transformers pads inputs to whole blocks
            length = -(-length // config.block_size) * config.block_size
        return {"max_position_embeddings": length}

    def prepare(self, model: PreTrainedModel) -> PreTrainedModel:
        # transformers switches to full attention at the first short input and stays there, so the output for a long
        # input would depend on earlier inputs.
        if model.config.attention_type == "block_sparse":
            model.base_model.register_forward_pre_hook(choose_attention, with_kwargs=True)
        return model


def choose_attention(model: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Sets BigBird's attention type for the input's length, by transformers' own rule."""
    given = arguments[0] if arguments else named.get("input_ids")
    length = (named["inputs_embeds"] if given is None else given).shape[1]
    config: Any = model.config
    model.set_attention_type("original_full" if length <= fully(config) else "block_sparse")  # type: ignore[operator]


def fully(config: Any) -> int:
    """Returns the length of the longest input that BigBird reads with full attention."""
    return (5 + 2 * config.num_random_blocks) * config.block_size
