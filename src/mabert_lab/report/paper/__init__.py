"""The paper's numbers, each table a record with its label in the source, its unit and what is known of its origin.

No other part of the project holds them.
"""

from mabert_lab.report.paper.efficiency import (
    LATENCY,
    LENGTHS,
    MACHINE,
    MEMORY,
    PARAMETERS,
    TRAINING,
    Machine,
    headline,
)
from mabert_lab.report.paper.glue import (
    GLUE,
    INTEGRATION,
    INTEGRATIONS,
    PATTERNS,
    POOLING,
    POOLINGS,
    TASKS,
    Task,
    average,
)
from mabert_lab.report.paper.record import BASELINES, MEASURED, NAMES, Score, Table

__all__ = [
    "BASELINES",
    "GLUE",
    "INTEGRATION",
    "INTEGRATIONS",
    "LATENCY",
    "LENGTHS",
    "MACHINE",
    "MEASURED",
    "MEMORY",
    "NAMES",
    "PARAMETERS",
    "PATTERNS",
    "POOLING",
    "POOLINGS",
    "TASKS",
    "TRAINING",
    "Machine",
    "Score",
    "Table",
    "Task",
    "average",
    "headline",
]
