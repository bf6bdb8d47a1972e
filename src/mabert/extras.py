"""Packages that only some commands need, and the message that names the extra to install if one is missing."""

from collections.abc import Sequence
from importlib.util import find_spec

EXTRAS = {
    "train": ("accelerate", "datasets", "pyarrow", "scipy", "sentencepiece", "sklearn", "tensorboard", "zstandard"),
    "export": ("onnx", "onnxruntime", "onnxscript", "openvino"),
    "lab": ("bm25s", "jinja2", "mambapy", "markdown_it", "matplotlib", "pandas"),
    "bench": ("nncf",),
    "cluster": ("pyspark", "ray"),
}
"""Import names of each extra's packages, without those of other extras."""

DISTRIBUTIONS = {"markdown_it": "markdown-it-py", "ray": "ray[data]", "sklearn": "scikit-learn"}
"""Names to install, if they differ from those to import."""


def check_installed(*packages: str) -> None:
    """Checks that packages of the extras are installed, without importing them.

    Raises:
        ValueError: If one is missing; names the extra that brings it.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ValueError(_line(package))


def check_reporters(names: Sequence[str]) -> None:
    """Checks that transformers knows all names of `report_to`, and that their packages are installed.

    Raises:
        ValueError: If not; names the package to install.
    """
    if names in (["tensorboard"], ["none"], ["all"], []):  # the extra `train` brings TensorBoard
        return
    from transformers.integrations import integration_utils

    known = sorted(integration_utils.INTEGRATION_TO_CALLBACK)
    # transformers does not list the last two even where they are installed.
    there = {*integration_utils.get_available_reporting_integrations(), "azure_ml", "flyte"}
    for name in names:
        if name not in known:
            raise ValueError(f"report_to names {name!r}; transformers knows {', '.join(known)}; or all or none alone")
        if name not in there:
            package = name.replace("_", "-")
            raise ValueError(f"report_to names {name!r}, which is not installed: pip install {package}")


def lacking(error: ModuleNotFoundError) -> str:
    """Returns a message that names the extra with the package that an import missed.

    Raises:
        ModuleNotFoundError: The same error, if no extra has the package.
    """
    package = str(error.name).partition(".")[0]
    if not any(package in packages for packages in EXTRAS.values()):
        raise error
    return _line(package)


def _line(package: str) -> str:
    extra = next(extra for extra, packages in EXTRAS.items() if package in packages)
    name = DISTRIBUTIONS.get(package, package)
    return f"{name} is not installed; the extra {extra} brings it: pip install 'mabert[{extra}]'"
