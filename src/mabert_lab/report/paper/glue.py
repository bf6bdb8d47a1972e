"""The paper's scores on GLUE, mean and standard deviation over five seeds."""

from collections.abc import Mapping
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

from mabert_lab.report.paper.record import MEASURED, Score, Table, rows_of


class Task(NamedTuple):
    """A column of the tables of scores.

    Attributes:
        title: As the paper prints it.
        metric: What it is scored by.
    """

    title: str
    metric: str


TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "cola": Task("CoLA", "MCC"),
        "sst2": Task("SST-2", "accuracy"),
        "mrpc": Task("MRPC", "F1"),
        "qqp": Task("QQP", "F1"),
        "mnli_m": Task("MNLI-m", "accuracy"),
        "mnli_mm": Task("MNLI-mm", "accuracy"),
        "qnli": Task("QNLI", "accuracy"),
        "rte": Task("RTE", "accuracy"),
    }
)
"""The columns in order; the paper scores MRPC and QQP by F1 in its tables, though its text names accuracy as well."""

INTEGRATIONS: Mapping[str, str] = MappingProxyType(
    {"full": "Full", "psm_only": "PSM only", "map_only": "MAP only", "none": "None"}
)
"""Rows of the component ablation with the names it prints: padding-safe masking (PSM), mask-aware pooling (MAP)."""

POOLINGS: Mapping[str, str] = MappingProxyType(
    {"map": "MAP", "attn": "ATTN", "cls": "CLS", "masked_mean": "MaskedMean"}
)
"""Rows of the pooling ablation with the names it prints."""


def _scores(
    label: str, title: str, cells: Mapping[str, tuple[str, str]], provenance: str = MEASURED
) -> Table[str, Score]:
    """A table from a line of means and a line of deviations for each row."""
    rows = {
        name: [Score(float(mean), float(std)) for mean, std in zip(means.split(), stds.split(), strict=True)]
        for name, (means, stds) in cells.items()
    }
    columns = tuple(TASKS)
    return Table(label, title, "share, or MCC", columns, rows_of(columns, rows), provenance)


PATTERNS = _scores(
    "tab:pattern_glue",
    "Interleaving patterns, pretrained for 10 % of the steps",
    {
        "MMMMMMMMMMMM": (
            "0.401 0.878 0.805 0.831 0.745 0.740 0.796 0.561",
            "0.014 0.007 0.017 0.003 0.012 0.017 0.008 0.032",
        ),
        "TTTTTTTTTTTT": (
            "0.428 0.891 0.834 0.843 0.796 0.802 0.864 0.575",
            "0.020 0.012 0.015 0.002 0.015 0.018 0.007 0.030",
        ),
        "MTTMTTMTTMTT": (
            "0.555 0.913 0.823 0.855 0.804 0.806 0.868 0.586",
            "0.017 0.008 0.015 0.003 0.015 0.019 0.008 0.030",
        ),
        "TMTMTMTMTMTM": (
            "0.525 0.896 0.826 0.862 0.801 0.802 0.873 0.587",
            "0.017 0.011 0.017 0.004 0.014 0.018 0.006 0.031",
        ),
        "MTMTMTMTMTMT": (
            "0.573 0.897 0.797 0.861 0.803 0.804 0.859 0.582",
            "0.019 0.010 0.018 0.003 0.015 0.016 0.007 0.031",
        ),
        "TMMTMMTMMTMM": (
            "0.528 0.903 0.832 0.863 0.803 0.802 0.870 0.595",
            "0.014 0.008 0.016 0.004 0.014 0.026 0.009 0.031",
        ),
        "MMTMMTMMTMMT": (
            "0.574 0.904 0.837 0.868 0.809 0.814 0.867 0.602",
            "0.016 0.009 0.016 0.003 0.014 0.015 0.007 0.030",
        ),
        "TTMTTMTTMTTM": (
            "0.512 0.902 0.809 0.859 0.800 0.805 0.874 0.580",
            "0.016 0.009 0.016 0.003 0.014 0.020 0.007 0.030",
        ),
    },
    "its bold SST-2 score, that of MMTMMTMMTMMT, is not the highest of the column: MTTMTTMTTMTT has more",
)

_TENTH = _scores(
    "tab:glue_10pct",
    "Models pretrained for 10 % of the steps",
    {
        "bert": (
            "0.419 0.874 0.821 0.837 0.780 0.791 0.846 0.578",
            "0.017 0.013 0.016 0.006 0.012 0.013 0.011 0.028",
        ),
        "albert": (
            "0.388 0.868 0.814 0.832 0.772 0.781 0.842 0.566",
            "0.019 0.013 0.017 0.007 0.015 0.014 0.013 0.032",
        ),
        "longformer": (
            "0.401 0.892 0.820 0.834 0.776 0.787 0.858 0.573",
            "0.020 0.014 0.016 0.008 0.012 0.015 0.011 0.033",
        ),
        "bigbird": (
            "0.406 0.897 0.822 0.835 0.781 0.792 0.862 0.577",
            "0.019 0.012 0.016 0.005 0.014 0.014 0.012 0.031",
        ),
        "deberta": (
            "0.423 0.881 0.817 0.829 0.789 0.801 0.829 0.569",
            "0.018 0.011 0.013 0.004 0.015 0.014 0.012 0.036",
        ),
        "mabert": (
            "0.574 0.904 0.837 0.868 0.809 0.814 0.867 0.602",
            "0.016 0.009 0.016 0.003 0.014 0.015 0.007 0.030",
        ),
    },
)

_QUARTER = _scores(
    "tab:glue_25pct",
    "Models pretrained for 25 % of the steps",
    {
        "bert": (
            "0.452 0.887 0.833 0.841 0.796 0.801 0.851 0.591",
            "0.018 0.012 0.017 0.005 0.011 0.021 0.010 0.027",
        ),
        "albert": (
            "0.438 0.884 0.828 0.840 0.792 0.798 0.848 0.586",
            "0.018 0.012 0.016 0.006 0.014 0.020 0.012 0.029",
        ),
        "longformer": (
            "0.455 0.906 0.836 0.844 0.799 0.804 0.861 0.592",
            "0.019 0.013 0.015 0.005 0.013 0.021 0.011 0.030",
        ),
        "bigbird": (
            "0.462 0.910 0.839 0.846 0.803 0.806 0.863 0.596",
            "0.021 0.011 0.013 0.006 0.013 0.024 0.013 0.032",
        ),
        "deberta": (
            "0.497 0.908 0.831 0.852 0.803 0.808 0.847 0.603",
            "0.017 0.012 0.014 0.004 0.014 0.019 0.011 0.034",
        ),
        "mabert": (
            "0.612 0.917 0.848 0.873 0.815 0.816 0.868 0.612",
            "0.015 0.008 0.015 0.005 0.013 0.020 0.008 0.029",
        ),
    },
)

_HALF = _scores(
    "tab:glue_50pct",
    "Models pretrained for 50 % of the steps",
    {
        "bert": (
            "0.515 0.902 0.845 0.846 0.807 0.813 0.859 0.598",
            "0.018 0.010 0.016 0.005 0.011 0.012 0.009 0.030",
        ),
        "albert": (
            "0.490 0.898 0.840 0.842 0.803 0.809 0.856 0.598",
            "0.019 0.012 0.017 0.006 0.014 0.013 0.011 0.031",
        ),
        "longformer": (
            "0.506 0.918 0.848 0.844 0.809 0.815 0.868 0.606",
            "0.020 0.011 0.016 0.005 0.013 0.014 0.010 0.033",
        ),
        "bigbird": (
            "0.514 0.920 0.852 0.843 0.812 0.817 0.869 0.607",
            "0.016 0.012 0.014 0.006 0.012 0.018 0.012 0.030",
        ),
        "deberta": (
            "0.548 0.918 0.842 0.862 0.811 0.820 0.868 0.619",
            "0.018 0.011 0.015 0.004 0.013 0.014 0.010 0.031",
        ),
        "mabert": (
            "0.634 0.924 0.863 0.877 0.825 0.828 0.886 0.624",
            "0.020 0.008 0.018 0.004 0.011 0.021 0.007 0.037",
        ),
    },
)

_FULL = _scores(
    "tab:glue_full_budget",
    "Models pretrained for 100 % of the steps",
    {
        "bert": (
            "0.522 0.912 0.853 0.856 0.826 0.829 0.876 0.618",
            "0.017 0.012 0.017 0.006 0.014 0.011 0.012 0.027",
        ),
        "albert": (
            "0.503 0.920 0.855 0.857 0.829 0.832 0.880 0.618",
            "0.018 0.012 0.017 0.006 0.012 0.013 0.013 0.030",
        ),
        "longformer": (
            "0.534 0.924 0.863 0.858 0.830 0.831 0.882 0.626",
            "0.018 0.012 0.016 0.006 0.013 0.014 0.012 0.031",
        ),
        "bigbird": (
            "0.528 0.926 0.864 0.857 0.831 0.832 0.881 0.624",
            "0.016 0.011 0.015 0.005 0.014 0.012 0.013 0.029",
        ),
        "deberta": (
            "0.617 0.934 0.862 0.868 0.838 0.842 0.886 0.648",
            "0.015 0.013 0.014 0.004 0.015 0.013 0.019 0.034",
        ),
        "mabert": (
            "0.676 0.933 0.869 0.879 0.835 0.837 0.893 0.654",
            "0.018 0.010 0.017 0.005 0.016 0.017 0.012 0.033",
        ),
    },
)

GLUE: Mapping[float, Table[str, Score]] = MappingProxyType({0.1: _TENTH, 0.25: _QUARTER, 0.5: _HALF, 1.0: _FULL})
"""The models' tables by the share of the steps that they were pretrained for."""

INTEGRATION = _scores(
    "tab:ablation_integration",
    "Components of MaBERT, pretrained for all steps",
    {
        "full": (
            "0.676 0.933 0.869 0.879 0.835 0.837 0.893 0.654",
            "0.018 0.010 0.017 0.005 0.016 0.017 0.012 0.033",
        ),
        "psm_only": (
            "0.641 0.918 0.849 0.863 0.816 0.818 0.874 0.638",
            "0.022 0.011 0.019 0.006 0.017 0.018 0.013 0.036",
        ),
        "map_only": (
            "0.661 0.922 0.841 0.860 0.819 0.820 0.878 0.597",
            "0.018 0.031 0.023 0.004 0.017 0.027 0.014 0.078",
        ),
        "none": (
            "0.596 0.903 0.841 0.847 0.803 0.805 0.855 0.614",
            "0.027 0.013 0.021 0.007 0.020 0.021 0.015 0.041",
        ),
    },
    "its row PSM only has masking and [CLS] pooling, as the row CLS of tab:pooling_pred_100pct has, but all eight "
    "means differ; that row equals MAP only instead, in every cell but one (the deviation of CoLA)",
)

POOLING = _scores(
    "tab:pooling_pred_100pct",
    "Pooling of MaBERT, pretrained for all steps",
    {
        "map": (
            "0.676 0.933 0.869 0.879 0.835 0.837 0.893 0.654",
            "0.018 0.010 0.017 0.005 0.016 0.017 0.012 0.033",
        ),
        "attn": (
            "0.648 0.924 0.857 0.861 0.823 0.818 0.888 0.639",
            "0.015 0.025 0.022 0.011 0.011 0.023 0.016 0.036",
        ),
        "cls": (
            "0.661 0.922 0.841 0.860 0.819 0.820 0.878 0.597",
            "0.011 0.031 0.023 0.004 0.017 0.027 0.014 0.078",
        ),
        "masked_mean": (
            "0.651 0.924 0.857 0.866 0.823 0.817 0.869 0.631",
            "0.018 0.029 0.021 0.010 0.018 0.023 0.013 0.009",
        ),
    },
    'a remark in the paper\'s source says "predicted from 50% ratios", so it may not have been measured; its row CLS '
    "equals MAP only of tab:ablation_integration in every cell but one (the deviation of CoLA)",
)


def average(table: Table[str, Score], row: str, columns: tuple[str, ...] = tuple(TASKS)) -> float:
    """Mean of a row's means, as the paper's figure of averages has it over all eight tasks.

    Args:
        table: One of scores.
        row: Key of the row.
        columns: Tasks to average over.

    Raises:
        KeyError: The table has no such row or column.
    """
    return fmean(table.rows[row][column].mean for column in columns)
