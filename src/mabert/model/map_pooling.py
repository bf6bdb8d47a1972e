"""A classifier's mask-aware attention pooling as a module for sentence-transformers, which imports this file."""

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from sentence_transformers.base.modules.module import Module
from torch import nn

from mabert.model.heads import MaBertForSequenceClassification
from mabert.model.pooling import FIELDS, POOLER_FILE, Pooler, map_pooler


class MapPooling(Module):
    """Eqs. 11 to 13 on the token vectors of sentence-transformers' `Transformer`, with a classifier's weights or none.

    A folder of sentence-transformers keeps the pooling's settings and weights in a subfolder. A classifier's folder has
    neither there, and both are read from the classifier.

    Args:
        hidden_size: Width D.
        pooler_act: As in `MaBertConfig`, like the three that follow.
        pooler_norm: Likewise.
        layer_norm_eps: Likewise.
        norm_bias: Likewise.
    """

    def __init__(
        self,
        hidden_size: int,
        pooler_act: str | None = None,
        pooler_norm: bool = False,
        layer_norm_eps: float = 1e-12,
        norm_bias: bool = True,
    ) -> None:
        super().__init__()
        given = (hidden_size, pooler_act, pooler_norm, layer_norm_eps, norm_bias)
        self.settings: dict[str, Any] = dict(zip(FIELDS, given, strict=True))
        self.pooler: Pooler = map_pooler(self.settings)

    @classmethod
    def of(cls, classifier: nn.Module) -> "MapPooling":
        """Makes the pooling of a classifier, sharing its weights.

        Raises:
            ValueError: If the classifier pools in another way.
        """
        config: Any = classifier.config
        if config.pooling != "map":
            raise ValueError(f"the classifier pools by {config.pooling!r}; 'map' is needed")
        module = cls(**{name: getattr(config, name) for name in FIELDS})
        module.pooler = classifier.pooler  # type: ignore[assignment]
        return module

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Adds `sentence_embedding` (batch, D) to `features`, from `token_embeddings` (batch, time, D) and
        `attention_mask` (batch, time)."""
        hidden, mask = features["token_embeddings"], features["attention_mask"]
        features["sentence_embedding"] = self.pooler(hidden, mask != 0)
        return features

    def get_embedding_dimension(self) -> int:
        """Width D."""
        return int(self.settings["hidden_size"])

    def get_config_dict(self) -> dict[str, Any]:
        """Returns the arguments that make such a module."""
        return self.settings

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Writes the settings and the weights, the latter always as safetensors."""
        self.save_config(output_path)
        save_file(self.pooler.state_dict(), Path(output_path) / POOLER_FILE)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", cache_folder: str | None = None, **kwargs: Any) -> Any:
        """Reads a saved module, or makes that of a classifier's folder.

        Args:
            model_name_or_path: Folder or hub name.
            subfolder: Subfolder with the module's own files.
            cache_folder: The hub's cache.
            kwargs: `token`, `revision` and `local_files_only`, as for the hub; others are ignored.

        Raises:
            ValueError: If the settings have no weights beside them, or the classifier pools in another way.
        """
        hub = {name: kwargs.get(name) for name in ("token", "revision")}
        hub["local_files_only"] = kwargs.get("local_files_only", False)
        place = {"subfolder": subfolder, "cache_folder": cache_folder, **hub}
        settings = cls.load_config(model_name_or_path, **place)
        if not settings:
            model = MaBertForSequenceClassification.from_pretrained(model_name_or_path, cache_dir=cache_folder, **hub)
            return cls.of(model)
        file = cls.load_file_path(model_name_or_path, filename=POOLER_FILE, **place)
        if file is None:
            raise ValueError(f"{model_name_or_path} has settings in {subfolder} and no {POOLER_FILE} beside them")
        module = cls(**settings)
        module.pooler.load_state_dict(load_file(file))
        return module
