"""The encoder: embeddings, the interleaved stack, a last LayerNorm."""

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, logging
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from mabert.files.sentences import write_modules
from mabert.model.anywhere import OpensAnywhere
from mabert.model.attention import SelfAttention, can_fuse
from mabert.model.blocks import BLOCKS, ResidualBlock
from mabert.model.boundaries import BOUNDARIES, read_boundaries
from mabert.model.config import MaBertConfig
from mabert.model.delta import whole
from mabert.model.embeddings import MaBertEmbeddings, RotaryPositions, stretch
from mabert.model.graphs import Graphs, serves
from mabert.model.mamba import MambaMixer, Recurrence, SelectiveCore
from mabert.model.masking import PaddingMask
from mabert.model.norm import layer_norm
from mabert.model.packing import Unpadding, is_tracing, total_of
from mabert.model.quantizing import sparing
from mabert.ops.transforms import is_mapped

logger = logging.get_logger(__name__)


class MaBertPreTrainedModel(OpensAnywhere, PreTrainedModel):
    """The settings that transformers reads from every MaBERT model."""

    config_class = MaBertConfig
    config: MaBertConfig
    base_model_prefix = "mabert"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar = ["MaBertEmbeddings", "MambaBlock", "TransformerBlock", "Recurrence"]
    _supports_sdpa = True
    _supports_attention_backend = True
    _keep_in_fp32_modules_strict: ClassVar = list(Recurrence.FLOAT32)
    _can_record_outputs: ClassVar = {"hidden_states": ResidualBlock, "attentions": [SelfAttention, MambaMixer]}

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """Works as in transformers; from a folder that `mabert convert --delta` wrote, it loads the whole model.

        A `quantization_config` that names no modules to skip gets those of `mabert.model.quantizing`.
        """
        if (asked := kwargs.get("quantization_config")) is not None:
            kwargs["quantization_config"] = sparing(asked)
        return super().from_pretrained(whole(pretrained_model_name_or_path), *model_args, **kwargs)

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Works as in transformers; where vectors are made in another way than sentence-transformers makes them of any
        model (the mean of the tokens' vectors), it also writes the list of modules that says how."""
        super().save_pretrained(save_directory, **kwargs)
        pooling = self.pools_by()
        if pooling != "mean" or self.config.normalize:
            write_modules(Path(save_directory), pooling, self.config.normalize, self.config.hidden_size)

    def pools_by(self) -> str:
        """Returns how `mabert.load` makes a text's vector: `mean` or `cls`; a classifier of texts also by `map`."""
        return "cls" if self.config.pooling == "cls" else "mean"

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # In custom code, transformers skips modules that have no parameters of their own. A core has none, but it
        # initializes its submodules' parameters, in the first version's order.
        super()._initialize_weights(module, is_custom_code and not isinstance(module, SelectiveCore))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        own = getattr(module, "init_weights", None)
        if callable(own) and not isinstance(module, PreTrainedModel):
            own()

    def get_position_embeddings(self) -> nn.Embedding:
        """Returns the learned table of positions.

        Raises:
            ValueError: If the configuration has none.
        """
        table = self.base_model.embeddings.position_embeddings
        if table is None:
            raise ValueError(
                f"position_embedding is {self.config.position_embedding!r}: there is no table of positions"
            )
        return table

    @torch.no_grad()
    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Resizes the learned positions by 1-D linear interpolation (Table A3), keeping the first and last.

        Args:
            new_num_position_embeddings: The new longest input.

        Raises:
            ValueError: If there is no table, or the number is not positive.
        """
        if new_num_position_embeddings < 1:
            raise ValueError(f"new_num_position_embeddings is {new_num_position_embeddings}; it must be at least 1")
        old = self.get_position_embeddings().weight
        table = nn.Embedding(new_num_position_embeddings, old.shape[1], device=old.device, dtype=old.dtype)
        table.weight.copy_(stretch(old, new_num_position_embeddings))
        table.weight.requires_grad_(old.requires_grad)
        self.base_model.embeddings.position_embeddings = table
        self.config.max_position_embeddings = new_num_position_embeddings


class MaBertModel(MaBertPreTrainedModel):
    """The bare encoder: token vectors from token ids.

    Attributes:
        prepacked: Whether `prepack` has changed the layers.
        graphs: The CUDA graphs that inference runs by, see `mabert.model.graphs.use_graphs`.
    """

    prepacked = False
    graphs: Graphs | None = None

    def __init__(self, config: MaBertConfig) -> None:
        super().__init__(config)
        config.check_schedule()
        self.embeddings = MaBertEmbeddings(config)
        self.rotary = RotaryPositions(config) if config.position_embedding == "rotary" else None
        letters = enumerate(config.layer_pattern)
        self.layers = nn.ModuleList([BLOCKS[letter](config, layer) for layer, letter in letters])
        self.norm = layer_norm(config) if config.final_norm else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embeddings.word_embeddings = value

    @merge_with_config_defaults
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encodes a batch.

        Args:
            input_ids: int64 (batch, time).
            attention_mask: (batch, time), 1 at tokens, 0 at padding; default, all tokens.
            token_type_ids: int64 (batch, time), segments; default, 0.
            position_ids: int64 (batch or 1, time); default, each token's index among the tokens of its sequence.
            inputs_embeds: (batch, time, `embedding_size`), in place of `input_ids`.
            kwargs: `output_hidden_states`, `output_attentions`, `return_dict`. For sequences packed into one row (1,
                total), without padding or mask, also their boundaries, as in transformers' padding-free training:
                `cu_seq_lens_q` int32 (sequences + 1,), the equal `cu_seq_lens_k`, `max_length_q` and `max_length_k`, or
                `seq_idx` int32 (1, total). `cu_seq_lens_host`, the same offsets as a tuple, spares a GPU the wait for
                them, and is trusted there.

        Returns:
            `last_hidden_state` (batch, time, D). On request also `hidden_states`, of the embeddings and of each layer,
            and `attentions`, (batch, heads, time, time) for each layer; for a Mamba layer, the hidden attention of its
            scan.

        Raises:
            ValueError: If both or neither of `input_ids` and `inputs_embeds` are given; an input, mask or positions
                have the wrong shape; an id is outside its table; the input is longer than the table of positions; the
                mask holds other numbers than 0 and 1; or the boundaries of a packed row are missing, do not cover it,
                or come with a mask.
        """
        given = self._check_shapes(input_ids, inputs_embeds, position_ids)
        asked = kwargs.get("output_attentions")
        kwargs["output_attentions"] = bool(self.config.output_attentions if asked is None else asked)
        packing = read_boundaries(kwargs, given, attention_mask, position_ids)
        if packing is not None and kwargs["output_attentions"]:
            raise ValueError("output_attentions is not there for packed rows: give the texts as a padded batch")
        for name in BOUNDARIES:
            kwargs.pop(name, None)
        checks = {"own_positions": position_ids is None, "unmasked": attention_mask is None and packing is None}
        regime = self.config.padding_safe_masking
        mask = PaddingMask.from_attention_mask(attention_mask, given, regime, packing)
        if position_ids is None:
            self._check_length(given.shape[1], mask)

        unpadding = self._unpadding(mask, given, kwargs)
        if unpadding is not None:
            # Values at padding must have no effect, be it an id outside its table or a NaN that would reach a gradient.
            input_ids, token_type_ids, position_ids, inputs_embeds = (
                None if x is None else mask.zero(x) for x in (input_ids, token_type_ids, position_ids, inputs_embeds)
            )
        if position_ids is None:
            position_ids = mask.positions(given.shape[:2], given.device)
        inputs = (input_ids, token_type_ids, position_ids, inputs_embeds)
        if unpadding is not None:
            mask = PaddingMask(None, regime, unpadding.packing)
        warn_of_holes(mask)
        outputs = self._through_layers(inputs, checks, mask, unpadding, **{**kwargs, "return_dict": True})
        return outputs if unpadding is None else unpadding.restore_all(outputs)

    @capture_outputs
    def _through_layers(
        self,
        inputs: tuple[Tensor | None, Tensor | None, Tensor, Tensor | None],
        checks: dict[str, bool],
        mask: PaddingMask,
        unpadding: Unpadding | None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Runs embeddings, stack and last LayerNorm; the outputs it records are padded or packed, as the layers ran.

        The embeddings are computed in here because a tensor that the caller holds is not freed while the layers run.
        They are computed from the padded batch, so that hooks and wrappers see its shape.
        """
        position_ids = inputs[2] if unpadding is None else unpadding.flatten(inputs[2])
        spare = int(unpadding is not None and unpadding.spare > 0)
        run = self._layers if self.graphs is None else self._by_graph
        last = run(self._embedded(inputs, checks, unpadding), position_ids, mask, spare, kwargs)
        return BaseModelOutput(last_hidden_state=last)

    def _embedded(self, inputs: Any, checks: dict[str, bool], unpadding: Unpadding | None) -> Tensor:
        """Computes the embeddings, and packs them if the batch runs without its padding."""
        hidden = self.embeddings(*inputs, **checks)
        return hidden if unpadding is None else unpadding.flatten(hidden)

    def _layers(
        self, hidden: Tensor, position_ids: Tensor, mask: PaddingMask, spare: int, options: dict[str, Any]
    ) -> Tensor:
        """Runs the stack and the last LayerNorm.

        Args:
            hidden: (batch, time, D).
            position_ids: int64 (batch or 1, time).
            mask: The batch's padding, or the sequences of a packed row.
            spare: How many of these sequences are no text.
            options: Arguments of the layers.
        """
        sequences = (hidden.shape[0] if mask.packing is None else len(mask.packing.lengths)) - spare
        attention: dict[str, Any] = {"rotary": None if self.rotary is None else self.rotary(position_ids, hidden.dtype)}
        asked = {"training": self.training, "output_attentions": options["output_attentions"]}
        attention["fused"] = can_fuse(self.config, hidden, sequences, **asked)
        # Without padding, pass no mask: some versions of transformers would build a matrix in a captured graph.
        keys = None if attention["fused"] else mask.keys
        if keys is not None and is_mapped():  # transformers reads a mask's values, which vmap forbids
            attention["attention_mask"] = keys[:, None, None]
        elif keys is not None:
            attention["attention_mask"] = create_bidirectional_mask(self.config, hidden, keys)
        for layer in self.layers:
            hidden = layer(hidden, mask, **attention, **options)
        return mask.after_stack(self.norm(hidden))

    def _by_graph(
        self, hidden: Tensor, position_ids: Tensor, mask: PaddingMask, spare: int, options: dict[str, Any]
    ) -> Tensor:
        """Does the same by a CUDA graph where there is one that serves."""
        assert self.graphs is not None
        lengths = hidden.shape[1:2] * hidden.shape[0] if mask.packing is None else mask.packing.lengths
        last = None
        if mask.valid is None and serves(self, hidden, options):
            row = position_ids.expand(hidden.shape[:2]).reshape(1, -1)
            last = self.graphs(hidden.reshape(1, -1, hidden.shape[2]), row, tuple(lengths))
        if last is None:
            return self._layers(hidden, position_ids, mask, spare, options)
        return last.view(*hidden.shape[:2], -1)

    def _row(self, hidden: Tensor, position_ids: Tensor, mask: PaddingMask) -> Tensor:
        """Runs the layers on the row of a CUDA graph."""
        return self._layers(hidden, position_ids, mask, 0, {"output_attentions": False})

    def _check_shapes(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None, position_ids: Tensor | None
    ) -> Tensor:
        """Refuses inputs of wrong shapes; returns the ids or the embeddings, whichever is given."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        given = input_ids if inputs_embeds is None else inputs_embeds
        assert given is not None
        width = self.config.embedding_width
        if inputs_embeds is None and given.dim() != 2:
            raise ValueError(f"input_ids has shape {tuple(given.shape)}; it must be (batch, time)")
        if inputs_embeds is not None and (given.dim() != 3 or given.shape[2] != width):
            raise ValueError(f"inputs_embeds has shape {tuple(given.shape)}; it must be (batch, time, {width})")
        shape = given.shape[:2]
        if position_ids is not None and position_ids.shape not in (shape, (1, shape[1])):
            raise ValueError(
                f"position_ids has shape {tuple(position_ids.shape)}; it must be (batch or 1, time) = {tuple(shape)}"
            )
        return given

    def _unpadding(self, mask: PaddingMask, given: Tensor, kwargs: Any) -> Unpadding | None:
        """Plans how this batch runs as one row without its padding; None if it runs as it is.

        A batch without padding runs as one row too where a prepacked model needs another number of rows (`total_of`).
        """
        valid, shape = mask.valid, given.shape[:2]
        if self.prepacked and valid is None and mask.packing is None and total_of(shape.numel()) != shape.numel():
            valid = torch.ones(shape, dtype=torch.bool, device=given.device)
        return Unpadding.of(valid, self.prepacked) if valid is not None and self._unpads(mask, valid, kwargs) else None

    def _unpads(self, mask: PaddingMask, valid: Tensor, kwargs: Any) -> bool:
        """Returns whether a batch of these tokens, bool (batch, time), runs without its padding.

        It runs padded and masked if attention weights are asked for, which are those of the padded batch; if a graph is
        captured, whose shapes may not depend on the mask's values; and if gradients through hidden states may be asked
        for, because those of an unpadded run are restored copies. The last holds only where masked execution is exact.
        """
        if self.config.unpad == "never" or mask.regime != "exact" or is_tracing() or kwargs["output_attentions"]:
            return False
        if not bool(valid.any()):
            return False
        asked = kwargs.get("output_hidden_states")
        recorded = torch.is_grad_enabled() and (self.config.output_hidden_states if asked is None else asked)
        return not recorded or has_holes(valid)

    def _check_length(self, time: int, mask: PaddingMask) -> None:
        limit = self.config.max_position_embeddings
        if self.config.position_embedding != "learned" or time <= limit:
            return
        if mask.packing is not None:
            time = mask.packing.longest
        elif mask.valid is not None:
            if is_tracing():
                return
            time = int(mask.valid.sum(dim=1).max())
        if time > limit:
            raise ValueError(
                f"the input is {time} tokens long, max_position_embeddings is {limit}: truncate it, "
                f"or stretch the positions with model.resize_position_embeddings({time})"
            )


def has_holes(valid: Tensor) -> bool:
    """Returns whether any row of a mask, bool (batch, time), has padding between tokens."""
    starts = (valid[:, 1:] & ~valid[:, :-1]).sum(dim=1) + valid[:, 0]
    return bool((starts > 1).any())


def warn_of_holes(mask: PaddingMask) -> None:
    """Warns once that `exact` does not cover padding between tokens, because a convolution window spans the hole."""
    if mask.valid is None or mask.regime != "exact" or is_tracing():
        return
    if has_holes(mask.valid):
        logger.warning_once(
            "a row of attention_mask has padding between tokens; masked execution is exact for left and right "
            "padding only"
        )
