"""Compares latency across engines: outside torch, 8 bits, presets and folders."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from mabert_lab.report.document import MISSING, Page, page, table
from mabert_lab.report.efficiency import NAMES
from mabert_lab.report.figures import LOOKS, plain, svg

OURS = "mabert"
"""Prefix of the names of this package's model."""

STROKES = ("-", "--", ":", "-.")
"""Line styles of a model's first contender, its second, and so on."""


def engines_page(files: Iterable[tuple[str, Mapping[str, Any]]]) -> Page:
    """Makes a page with a table and a figure for each file that `mabert bench models` wrote of contenders, by name."""
    return page("engines.md", "Models in their engines", files=list(files), engines=sys.modules[__name__])


def latencies(content: Mapping[str, Any]) -> pd.DataFrame:
    """Returns the latency rows of a file."""
    rows = pd.DataFrame(content["rows"])
    return rows[rows["measure"] == "latency"].assign(title=lambda own: own["model"].map(title_of))


def latency_table(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Makes a table of milliseconds by length, one row per contender, and of our speed-up over the fastest other,
    separately for 8 bits and for more."""
    lengths = sorted(rows["length"].unique())
    medians = rows.pivot(index="title", columns="length", values="median_ms").reindex(rows["title"].unique())
    lines = [
        (title, *(MISSING if pd.isna(medians.at[title, n]) else f"{medians.at[title, n]:,.0f}" for n in lengths))
        for title in medians.index
    ]
    ours = medians.index.str.startswith(NAMES[OURS])
    short = medians.index.str.endswith("int8")
    for title, own in zip(medians.index[ours], short[ours], strict=True):
        speed = medians[~ours & (short == own)].min() / medians.loc[title]
        lines.append(
            (
                f"**{title}: its speed, in the fastest rival's**",
                *(MISSING if pd.isna(speed[n]) else f"**{speed[n]:.2f}**" for n in lengths),
            )
        )
    dtype, samples = rows["dtype"].iloc[0], rows["samples"].dropna()
    notes = [f"Medians of {samples.min():.0f} to {samples.max():.0f} calls, {dtype}; {name}."]
    settings = rows.dropna(subset="setting").groupby("title", sort=False)["setting"].unique()
    notes += ["; ".join(f"{title}: {' or '.join(given)}" for title, given in settings.items()) + "."]
    missing = rows[rows["median_ms"].isna()]
    notes += [f"{row.title} at {row.length:,} tokens: {row.reason}." for row in missing.itertuples()]
    return table("Latency of a forward, ms", ("", *(f"{n:,}" for n in lengths)), lines, notes)


def latency_chart(rows: pd.DataFrame) -> str:
    """Draws time over length, both logarithmic, with a line per contender in its model's colour."""
    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    axes = figure.subplots()
    drawn: dict[str, int] = {}
    for title, own in rows.dropna(subset="median_ms").groupby("title", sort=False):
        family = own["model"].iloc[0].partition(":")[0].partition("-")[0]
        look = LOOKS.get(family, LOOKS["albert"])
        drawn[family] = drawn.get(family, -1) + 1
        stroke = STROKES[drawn[family] % len(STROKES)]
        axes.plot(own["length"], own["median_ms"], stroke, color=look.colour, marker=look.marker, ms=4, label=title)
    lengths = sorted(rows["length"].unique())
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.set_xlabel("tokens")
    axes.set_ylabel("ms")
    plain(axes)
    figure.legend(loc="outside right center", frameon=False, fontsize="small")
    return svg(figure)


def title_of(name: str) -> str:
    """Returns a contender's title in tables: ``bert:openvino`` is BERT, openvino."""
    model, _, engine = name.partition(":")
    family, _, preset = model.partition("-")
    words = [NAMES[family], preset] if family in NAMES else [Path(model).name]
    return ", ".join(word for word in (*words, engine) if word)
