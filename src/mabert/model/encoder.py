"""The encoder: embeddings, the interleaved stack, a last LayerNorm."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from mabert.files.sentences import write_modules
from mabert.model.attention import SelfAttention, can_fuse
from mabert.model.blocks import BLOCKS, ResidualBlock
from mabert.model.config import MaBertConfig, OpensAnywhere
from mabert.model.embeddings import MaBertEmbeddings, RotaryPositions, layer_norm, stretch
from mabert.model.graphs import Graphs, serves
from mabert.model.inputs import Inputs, read_inputs
from mabert.model.mamba import MambaMixer, Recurrence, SelectiveCore
from mabert.model.masking import PaddingMask
from mabert.model.pooling import Pooler
from mabert.ops.derivatives import is_mapped

UNQUANTIZED = ("pooler", "classifier", "qa_outputs", "decoder")
"""Modules that bitsandbytes, quanto and torchao leave unquantized: they are trained in full beside an adapter."""

NARROW = ("x_proj", "dt_proj")
"""Modules that bitsandbytes and quanto leave unquantized too: the scan carries on errors of the step sizes, B and C
that they make, and 4-bit kernels do not take their widths. torchao's int8 was measured with them quantized
(docs/clients.md)."""


def sparing(asked: Any) -> Any:
    """Returns a quantizer's configuration that skips `UNQUANTIZED` and `NARROW`, unless it names modules to skip."""
    asked = copy.copy(asked)
    for name in ("llm_int8_skip_modules", "modules_to_not_convert"):
        if getattr(asked, name, ()) is None:
            setattr(asked, name, [*UNQUANTIZED, *(NARROW if asked.quant_method != "torchao" else ())])
    return asked


class MaBertPreTrainedModel(OpensAnywhere, PreTrainedModel):
    """The settings that transformers reads from every MaBERT model."""

    config_class = MaBertConfig
    config: MaBertConfig
    base_model_prefix = "mabert"
    _input_embed_layer = "word_embeddings"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar = ["MaBertEmbeddings", "MambaBlock", "TransformerBlock", "Recurrence"]
    _supports_sdpa = True
    _supports_attention_backend = True
    _keep_in_fp32_modules_strict: ClassVar = list(Recurrence.FLOAT32)
    _can_record_outputs: ClassVar = {"hidden_states": ResidualBlock, "attentions": [SelfAttention, MambaMixer]}

    whole: ClassVar[Callable[[Any], Any]] = staticmethod(lambda folder: folder)
    """Returns the folder to read weights from; `mabert.conversion.delta`, which knows deltas, sets it."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """Works as in transformers; from a folder that `mabert convert --delta` wrote, it loads the whole model.

        A `quantization_config` that names no modules to skip gets `UNQUANTIZED` and `NARROW`.
        """
        if (asked := kwargs.get("quantization_config")) is not None:
            kwargs["quantization_config"] = sparing(asked)
        return super().from_pretrained(cls.whole(pretrained_model_name_or_path), *model_args, **kwargs)

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Works as in transformers. Also writes sentence-transformers' list of modules, unless its default (mean
        pooling, not normalized) gives the same vectors."""
        super().save_pretrained(save_directory, **kwargs)
        pooling = self.pools_by()
        if pooling != "mean" or self.config.normalize:
            write_modules(Path(save_directory), pooling, self.config.normalize, self.config.hidden_size)

    def pools_by(self) -> str:
        """Returns how `mabert.load` makes a text's vector: `mean` or `cls`; a classifier of texts also by `map`."""
        return self.config.pooling if self.config.pooling in Pooler.FIXED else "mean"

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
        graphs: The CUDA graphs that inference runs by, see `use_graphs`.
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

    def use_graphs(self) -> None:
        """Lets inference run by CUDA graphs where torch's variable-length attention serves: in half precision on a GPU,
        with the package's own layers and no attention window. The weights must not change any more."""
        config = self.config
        if set(config.layer_pattern) <= {"M", "T"} and set(config.attention_window or ()) <= {None}:
            stack = partial(self._layers, options={"output_attentions": False})
            self.graphs = Graphs(stack, config.padding_safe_masking)

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
        given = (input_ids, token_type_ids, position_ids, inputs_embeds)
        batch = read_inputs(self.config, given, attention_mask, kwargs, few_totals=self.prepacked)
        outputs = self._through_layers(batch, **{**kwargs, "return_dict": True})
        return outputs if batch.unpadding is None else batch.unpadding.restore_all(outputs)

    @capture_outputs
    def _through_layers(self, batch: Inputs, **options: Any) -> BaseModelOutput:
        """Runs embeddings, stack and last LayerNorm; the outputs it records are padded or packed, as the layers ran.

        The embeddings are those of the padded batch, so that hooks and wrappers see its shape. They are computed where
        they are passed on, since a tensor that a name holds is not freed while the layers run.
        """
        run = self._layers if self.graphs is None else self._by_graph
        asked = {"own_positions": batch.own_positions, "unmasked": batch.unmasked}
        positions = batch.packed(batch.tensors[2])
        last = run(batch.packed(self.embeddings(*batch.tensors, **asked)), positions, batch.mask, options)
        return BaseModelOutput(last_hidden_state=last)

    def _layers(self, hidden: Tensor, position_ids: Tensor, mask: PaddingMask, options: dict[str, Any]) -> Tensor:
        """Runs the stack and the last LayerNorm on vectors (batch, time, D); `options` are for the layers."""
        sequences = hidden.shape[0] if mask.packing is None else mask.packing.texts
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

    def _by_graph(self, hidden: Tensor, position_ids: Tensor, mask: PaddingMask, options: dict[str, Any]) -> Tensor:
        """Does the same by a CUDA graph where there is one that serves."""
        assert self.graphs is not None
        if mask.valid is None and not self.training and serves(self.config, hidden, options):
            lengths = hidden.shape[1:2] * hidden.shape[0] if mask.packing is None else mask.packing.lengths
            row = position_ids.expand(hidden.shape[:2]).reshape(1, -1)
            last = self.graphs(hidden.reshape(1, -1, hidden.shape[2]), row, tuple(lengths))
            if last is not None:
                return last.view(*hidden.shape[:2], -1)
        return self._layers(hidden, position_ids, mask, options)
