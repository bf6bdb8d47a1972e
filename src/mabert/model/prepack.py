"""Weights laid out once in the order that a CPU's matrix products read them, for models used for inference only."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, TypeGuard, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from transformers.activations import ACT2FN

from mabert.model.packing import is_tracing
from mabert.ops import int8
from mabert.ops.derivatives import is_transformed

AnyModule = TypeVar("AnyModule", bound=nn.Module)

HALF = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
"""Operators that tell whether oneDNN multiplies a short float on this processor; a torch without oneDNN lacks them."""

NO_ACTIVATION = ("none", "")

SMALLEST = 1 << 19
"""Smallest layer, in weights, that 8 bits make faster: 768 x 768 gains at 128 tokens, 384 x 384 does not at 512."""

FUSED = {
    type(ACT2FN["gelu"]): ("gelu", "none"),
    type(ACT2FN["gelu_new"]): ("gelu", "tanh"),
    type(ACT2FN["silu"]): ("swish", ""),
    nn.ReLU: ("relu", ""),
}
"""Activations that oneDNN can fuse into a product, with oneDNN's names for them."""

ACTIVATED = {
    "mabert.model.blocks.FeedForward": ("up", "activation"),
    "transformers.models.albert.modeling_albert.AlbertLayer": ("ffn", "activation"),
    "transformers.models.bert.modeling_bert.BertIntermediate": ("dense", "intermediate_act_fn"),
    "transformers.models.electra.modeling_electra.ElectraIntermediate": ("dense", "intermediate_act_fn"),
    "transformers.models.roberta.modeling_roberta.RobertaIntermediate": ("dense", "intermediate_act_fn"),
}
"""Networks by module and class, each with the layer and the activation that reads that layer's whole output. To import
transformers' classes for this would take a sixth of a second."""


class PackedLinear(nn.Module):
    """A linear layer that holds its weight only in oneDNN's blocked layout; for inference on a CPU.

    torch converts a bf16 weight to that layout in every call, and sends float32 products to MKL, which is slower than
    oneDNN on some processors. Results equal those of `nn.Linear` up to rounding. The product is in `dtype`, by default
    the weight's, and oneDNN applies an activation to it, see `FUSED`.
    """

    bias: Tensor | None

    def __init__(
        self, linear: nn.Linear, dtype: torch.dtype | None = None, activation: tuple[str, str] = NO_ACTIVATION
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.activation = activation
        weight, bias = (None if held is None else held.detach() for held in (linear.weight, linear.bias))
        assert weight is not None
        self._pack(weight.to(dtype))
        self.register_buffer("bias", None if bias is None else bias.to(self.bias_dtype))

    def _pack(self, weight: Tensor) -> None:
        self.dtype = self.bias_dtype = weight.dtype
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())

    @property
    def weight(self) -> Tensor:
        """A copy of the weight in the ordinary layout, (out_features, in_features)."""
        return self._packed.to_dense()

    @property
    def nbytes(self) -> int:
        """Bytes of weight and bias, without the blocks' padding."""
        weight = self.in_features * self.out_features * self.dtype.itemsize
        return weight + (0 if self.bias is None else self.bias.nbytes)

    def forward(self, input: Tensor) -> Tensor:
        """Maps (..., in_features) to (..., out_features).

        Raises:
            RuntimeError: If the input requires gradients or has another dtype (autocast casts it as for `nn.Linear`), a
                graph is being captured, or a transform of `torch.func` or forward mode is on.
        """
        refuse_all_but_inference(input)
        if torch.is_autocast_enabled("cpu"):
            input = input.to(torch.get_autocast_dtype("cpu"))
        if input.dtype != self.dtype:
            raise RuntimeError(f"the input is of {input.dtype}; the model was prepacked for {self.dtype}")
        name, variant = self.activation
        return torch.ops.mkldnn._linear_pointwise(input, self._packed, self.bias, name, [], variant)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, dtype={self.dtype}"

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = self.weight
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        _, _, missing_keys, _, error_msgs = others
        name, shape = prefix + "weight", (self.out_features, self.in_features)
        weight = state_dict.pop(name, None)
        super()._load_from_state_dict(state_dict, prefix, *others)
        if self.bias is not None:
            self.bias = self.bias.to(self.bias_dtype)  # `assign` leaves it in the dtype that was given
        if weight is None:
            missing_keys.append(name)
        elif weight.shape != shape:
            error_msgs.append(f"size mismatch for {name}: it is {tuple(weight.shape)}, the layer's {shape}")
        else:
            self._pack(weight.to("cpu", self.dtype))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PackedLinear":
        weight = fn(self.weight)
        if not can_prepack(weight.device, weight.dtype):
            raise RuntimeError(f"a prepacked model cannot be moved to {weight.device} in {weight.dtype}; load it again")
        super()._apply(fn, recurse)
        if weight.dtype != self.dtype:
            self._pack(weight)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": self.weight}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._pack(self._packed)


class Int8Linear(PackedLinear):
    """A linear layer that multiplies 8-bit integers, see `mabert.ops.int8`; for inference on a CPU.

    It takes float32 and bfloat16 and returns the input's dtype, or autocast's. `weight` is the value that the integers
    stand for, in the original dtype.
    """

    def _pack(self, weight: Tensor) -> None:
        self.dtype, self.bias_dtype = weight.dtype, torch.float32
        self._packed = int8.Bytes.of(weight)

    @property
    def weight(self) -> Tensor:
        return self._packed.weight.to(self.dtype)

    @property
    def nbytes(self) -> int:
        return self.in_features * self.out_features + 4 * self.out_features * (2 if self.bias is None else 3)

    def forward(self, input: Tensor) -> Tensor:
        """Maps (..., in_features) to (..., out_features).

        Raises:
            RuntimeError: As in `PackedLinear`, or if the input has another dtype.
        """
        refuse_all_but_inference(input)
        if input.dtype not in (torch.float32, torch.bfloat16):
            raise RuntimeError(f"the input is of {input.dtype}; a model in 8 bits takes float32 or bfloat16")
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype
        return int8.linear(input, self._packed, self.bias, self.activation, dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": (self._packed.levels, self._packed.scales)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        nn.Module.__setstate__(self, state)
        self._packed = int8.Bytes.of_levels(*self._packed)


def refuse_all_but_inference(input: Tensor) -> None:
    """Raises RuntimeError for a gradient, or under a graph capture or transform, which cannot use prepacked layers."""
    if is_tracing() or is_transformed():
        raise RuntimeError(
            "a prepacked model is in no graph of torch.compile or torch.export and under no transform of "
            "torch.func; load it again"
        )
    if input.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("a prepacked model has no gradients; load the model again to train it")


def prepack(model: AnyModule, dtype: torch.dtype | Literal["int8"] | None = None) -> AnyModule:
    """Makes a model faster on a CPU for good; it can no longer be trained.

    Linear layers become `PackedLinear` in place, without a second copy of their weights. Some layers stay as they are:
    those whose weight another module shares (a decoder tied to embeddings), those with hooks, those with a quantized or
    sharded weight, those beneath a PEFT adapter, which writes to them when it is merged, and layers of any other class.
    An activation after a layer (`ACTIVATED`) becomes part of its product and is replaced by `nn.Identity`.
    `save_pretrained` writes the ordinary layout, in the packed dtype, and `load_state_dict` packs again.

    Args:
        model: Any module on a CPU, of any family.
        dtype: Dtype that linear layers compute in; default, that of each weight. The dtype that autocast will use
            (`torch.autocast("cpu", dtype)`) saves its casting of weights, and memory. `int8`: large layers (`SMALLEST`)
            multiply 8-bit integers, the others compute in their weight's dtype. At base size that is 1.15 to 1.5 times
            as fast as bfloat16, and vectors of a trained model keep a cosine of 0.999.

    Returns:
        The model, with no parameter that requires gradients.

    Raises:
        ValueError: If the model is not on a CPU, this CPU has no such product (see `can_prepack`), or no layer is large
            enough for 8 bits.
    """
    uses = Counter(id(held) for module in model.modules() for held in module._parameters.values() if held is not None)
    places = [
        (module, name)
        for module in model.modules()
        for name, child in module._modules.items()
        if is_plain(child) and uses[id(child.weight)] == 1 and not hasattr(module, "base_layer")
    ]
    in_int8, own = dtype == "int8", None if dtype == "int8" else dtype
    if in_int8:
        int8.check()
    for module, name in places:
        weight = getattr(module, name).weight
        device, wanted = weight.device, own or weight.dtype
        if not can_prepack(device, wanted):
            raise ValueError(
                f"prepacking is for products that this computer's CPU has instructions for; {name} is on {device}, in "
                f"{wanted}"
            )
    if in_int8 and not any(gains_by_int8(getattr(module, name)) for module, name in places):
        raise ValueError(f"int8 gains nothing: no linear layer here has {SMALLEST:,} weights; take bf16 or fp32")
    packed: WeakKeyDictionary[nn.Module, PackedLinear] = WeakKeyDictionary()  # frees each layer once it is packed
    shared = Counter(id(getattr(module, name)) for module, name in places)
    for module, name in places:
        child = getattr(module, name)
        if child not in packed:
            kind = Int8Linear if in_int8 and gains_by_int8(child) else PackedLinear
            packed[child] = kind(child, own, take_activation(module, name, shared[id(child)]))
        setattr(module, name, packed[child])
    encoders: list[Any] = [module for module in model.modules() if hasattr(module, "prepacked")]
    for encoder in encoders:
        encoder.prepacked = bool(packed)
    return model.requires_grad_(False)


def gains_by_int8(layer: nn.Linear) -> bool:
    """Returns whether a layer is large enough to be faster in 8 bits, and its widths are multiples of a vector."""
    widths = (layer.in_features, layer.out_features)
    return math.prod(widths) >= SMALLEST and not any(width % int8.STEP for width in widths)


def take_activation(module: nn.Module, name: str, places: int) -> tuple[str, str]:
    """Removes the activation from a network whose layer `name` will apply it; returns oneDNN's name for it. A layer
    that is used in several `places` of the model applies none."""
    layer, place = ACTIVATED.get(f"{type(module).__module__}.{type(module).__qualname__}", ("", ""))
    if layer != name or places > 1 or getattr(module, "gated", False):
        return NO_ACTIVATION
    activation = getattr(module, place)
    if type(activation) not in FUSED or not is_bare(activation):
        return NO_ACTIVATION
    setattr(module, place, nn.Identity())
    return FUSED[type(activation)]


def can_prepack(device: torch.device, dtype: torch.dtype) -> bool:
    """Returns whether prepacked layers run there: on x86 in float32, or in a short float that the CPU multiplies."""
    if device.type != "cpu" or not int8.has_onednn_on_x86():
        return False
    return getattr(torch.ops.mkldnn, HALF[dtype])() if dtype in HALF else dtype == torch.float32


def is_plain(module: nn.Module | None) -> TypeGuard[nn.Linear]:
    """Returns whether a module is a bare linear layer of torch's own class whose parameters are ordinary tensors.

    A quantized or sharded weight is a tensor of another class, which may not support the layout.
    """
    if type(module) is not nn.Linear or not is_bare(module):
        return False
    return all(held is None or type(held) in (nn.Parameter, Tensor) for held in module._parameters.values())


def is_bare(module: nn.Module) -> bool:
    """Returns whether a module is called as its class defines: no hooks, local or global, no forward of its own."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not (any(hooks) or _has_any_global_hook() or "forward" in vars(module))
