"""The machine: its processor and memory, processes and signals, precision, progress and time."""
