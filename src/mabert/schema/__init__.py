"""What recipes, configurations, options and benchmarks take: each range is declared once, and pydantic checks it.

Importing this package does not import pydantic, so that `--help` stays fast; the first check does.
"""

from typing import Literal

Masking = Literal["none", "pre", "post", "pre+post", "exact"]
"""Which inputs of a Mamba layer padding is masked in, see `mabert.model.masking`."""

Pooling = Literal["map", "attention", "cls", "mean"]
"""How a head makes one vector of a text's token vectors, see `mabert.model.pooling`."""
