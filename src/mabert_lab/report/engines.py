"""Contenders in engines of their own: a table and a figure of their times over length."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from mabert_lab.bench.notation import split, titled
from mabert_lab.report.charts import COLOURS, INK, panels, svg, with_grid
from mabert_lab.report.costs import NAMES
from mabert_lab.report.document import table, thousands, written

TITLES, OURS = NAMES | {"mabert-fast": "MaBERT, fast"}, ("mabert", "mabert-fast", "minilm")


def latencies(content: Mapping[str, Any]) -> pd.DataFrame:
    rows = pd.DataFrame([row for row in content["rows"] if row["measure"] == "latency"])
    return rows.assign(title=[titled(name, TITLES) for name in rows["model"]])


def latency_table(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Makes a table of milliseconds by length, one row per contender, with the rows of `speeds` below."""
    lengths = sorted(rows["length"].unique())
    lines = [(title, *(written(own[n], "{:,.0f}") for n in lengths)) for title, own in _medians(rows).iterrows()]
    for title, own in speeds(rows).iterrows():
        speed = (written(own[n], "**{:.2f}**") for n in lengths)
        lines.append((f"**{title}: its speed, in the fastest rival's**", *speed))
    dtype, samples = rows["dtype"].iloc[0], rows["samples"].dropna()
    notes = [f"Medians of {samples.min():.0f} to {samples.max():.0f} calls, {dtype}; {name}."]
    settings = rows.dropna(subset="setting").groupby("title", sort=False)["setting"].unique()
    notes += ["; ".join(f"{title}: {' or '.join(given)}" for title, given in settings.items()) + "."]
    missing = rows[rows["median_ms"].isna()]
    notes += [f"{row.title} at {row.length:,} tokens: {row.reason}." for row in missing.itertuples()]
    return table("Latency of a forward, ms", ("", *thousands(lengths)), lines, notes)


def speeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns by title and length how many times as fast each of ours is as the fastest rival of its precision."""
    medians = _medians(rows)
    of_ours = rows["model"].map(lambda name: split(name)[0] in OURS)
    ours, short = medians.index.isin(rows["title"][of_ours]), medians.index.str.endswith("int8")
    rivals = {kind: medians[~ours & (short == kind)].min() for kind in (False, True)}
    return pd.DataFrame({title: rivals[title.endswith("int8")] / medians.loc[title] for title in medians.index[ours]}).T


def _medians(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.pivot(index="title", columns="length", values="median_ms").reindex(rows["title"].unique())


def speed_over_length(rows: pd.DataFrame) -> str | None:
    """Draws `speeds` over length, with a line at the fastest rival; None if there is none of ours or no rival."""
    found = speeds(rows).dropna(how="all")
    if not len(found):
        return None
    figure, axes = panels((7.0, 3.4))
    places = range(len(found.columns))
    colours: dict[str, str] = {}
    for title, own in found.iterrows():
        model = title.removesuffix(", int8")
        colour = colours.setdefault(model, COLOURS[len(colours) % len(COLOURS)])
        axes.plot(places, own, "-" if model == title else "--", marker="o", ms=4, color=colour, label=title)
    axes.axhline(1, color=INK, linewidth=1)
    axes.annotate("the fastest rival", (places[-1], 1), (0, -4), textcoords="offset points", ha="right", va="top")
    axes.set_xticks(places, thousands(found.columns))
    with_grid(axes, xlabel="tokens", ylabel="times as fast", ylim=(0, None))
    figure.legend(loc="outside right center", frameon=False, fontsize="small", reverse=True)
    return svg(figure)
