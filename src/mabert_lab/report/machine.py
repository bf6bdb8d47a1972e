"""What a result was measured on, in words."""

from collections.abc import Mapping
from typing import Any


def machine_of(environment: Mapping[str, Any], device: str | None = None, *, instructions: bool = True) -> str:
    """Device or processor, threads and torch's version.

    Args:
        environment: As `mabert.machine.environment.environment` records it.
        device: ``cpu`` or ``cuda``, which of the two was measured; default, both, where there is a GPU.
        instructions: Whether the processor's kind of vector instructions is named, where it is known: one name stands
            for processors with and without AVX-512.
    """
    processor, gpu = environment.get("processor"), environment.get("device")
    if instructions and environment.get("instructions"):
        processor = f"{processor} ({environment['instructions']})"
    if device is None:
        where = processor if gpu in (None, "cpu") else f"{gpu}, {processor}"
    else:
        where = gpu if device == "cuda" else processor
    threads = environment.get("threads")
    torch = (environment.get("packages") or {}).get("torch")
    return f"{where}, {threads} thread{'s' * (threads != 1)}, torch {torch}"


def code_of(environment: Mapping[str, Any]) -> str:
    """The commit of the code that measured; its version where that was installed and had none."""
    if commit := environment.get("commit"):
        return f"commit {commit}"
    return f"mabert {(environment.get('packages') or {}).get('mabert') or 'of an unknown version'}"
