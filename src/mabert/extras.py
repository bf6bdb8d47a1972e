"""Packages that only some commands need, and what is said where one is missing: which extra brings it."""

from importlib.util import find_spec

EXTRAS = {
    "train": ("accelerate", "datasets", "pyarrow", "scipy", "sentencepiece", "sklearn", "tensorboard", "zstandard"),
    "export": ("onnx", "onnxruntime", "onnxscript", "openvino"),
    "lab": ("jinja2", "mambapy", "markdown_it", "matplotlib", "pandas"),
    "bench": ("nncf",),
}
"""Packages of each extra beside those of other extras, as they are imported."""

DISTRIBUTIONS = {"markdown_it": "markdown-it-py", "sklearn": "scikit-learn"}
"""Names to install, where they differ from those to import."""


def check_installed(*packages: str) -> None:
    """Checks that packages of the extras are there, without importing them.

    Raises:
        ValueError: If one is missing; names the extra that brings it.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ValueError(_line(package))


def lacking(error: ModuleNotFoundError) -> str:
    """Says which extra brings the package that an import missed.

    Raises:
        ModuleNotFoundError: The same, where no extra brings it.
    """
    package = str(error.name).partition(".")[0]
    if not any(package in packages for packages in EXTRAS.values()):
        raise error
    return _line(package)


def _line(package: str) -> str:
    extra = next(extra for extra, packages in EXTRAS.items() if package in packages)
    name = DISTRIBUTIONS.get(package, package)
    return f"{name} is not installed; the extra {extra} brings it: pip install 'mabert[{extra}]'"
