"""Describes the machine of a result."""

from collections.abc import Mapping
from typing import Any


def machine_of(environment: Mapping[str, Any], device: str | None = None, *, instructions: bool = True) -> str:
    """Describes device or processor, threads and torch's version.

    Args:
        environment: As `mabert.machine.environment.environment` records it.
        device: Which of ``cpu`` and ``cuda`` was measured; default, both if there is a GPU.
        instructions: Whether to name the processor's vector instructions if known, because processors of one name
            differ in AVX-512.
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
    """Returns the commit of the measuring code, or its version if it was installed without one."""
    if commit := environment.get("commit"):
        return f"commit {commit}"
    return f"mabert {(environment.get('packages') or {}).get('mabert') or 'of an unknown version'}"
