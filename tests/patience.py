"""How long a test waits for another process or thread."""

HANG = 1200.0
"""Seconds. However busy the machine is, only what hangs takes longer; pytest itself ends a test after 1,800 seconds."""
