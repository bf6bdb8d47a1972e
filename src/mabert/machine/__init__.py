"""The machine: processor, memory, processes and signals, precision, progress and timing."""
