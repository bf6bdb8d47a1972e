"""The efficiency report shows every measurement, every lack of one, and what follows from them."""

import pytest

from mabert_lab.report import paper
from mabert_lab.report.efficiency.findings import (
    crossings,
    headline,
    memory_growth,
    ratios,
    stretches,
    time_growth,
)
from mabert_lab.report.efficiency.results import NAMES
from mabert_lab.report.efficiency.tables import batch_of, measured_grid, number, paper_grid, spread_grid
from mabert_lab.report.grid import FLAG, MISSING, Grid, to_markdown
from mabert_lab.report.measurements import throughput_section
from tests.lab.report.rows import CPU, GPU, SLOW, efficiency_report, raw, whole


def cells(shown, name):
    """The cells of every line of a table, or of a text with tables, that begins with a name."""
    markdown = to_markdown(shown) if isinstance(shown, Grid) else shown
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines()]
    return [line[1:] for line in lines if line[0] == name]


def test_the_paper_measured_again_gives_the_papers_headlines(load):
    report = efficiency_report(load(whole()))
    assert "- Latency: **2.43** (the paper: 2.43)" in report
    assert "- Training step: **2.36** (the paper: 2.36)" in report


@pytest.mark.slow
def test_the_report_has_a_section_for_each_condition_the_papers_first(load):
    report = efficiency_report(load(whole(GPU) + whole(CPU)))
    first, second = "## The paper's settings, fp32, cpu", "## Each model at its best, bf16, cuda"
    assert 0 < report.index(first) < report.index(second)
    for title, caption in (
        ("Peak memory", "Peak memory (MiB), batch 1"),
        ("Latency", "Latency (ms), batch 1"),
        ("Training step", "Training step (ms), batch 32"),
    ):
        assert report.count(f"### {title}\n\n*{caption}*\n") == 2
    assert report.count("| 742.110 | 825.994 | 1,047.506 | 1,908.529 | 5,262.076 |") == 2
    assert report.count("| MaBERT | 64.117 | 240.334 | 516.242 | **1,240.849** | **3,319.429** |") == 2
    assert report.count("| model | latency | in the paper | training step | in the paper |") == 2


def test_a_measured_table_has_the_papers_order_and_its_lowest_numbers_in_bold(load):
    results = load(whole())
    table = measured_grid(results, results.table(CPU, "latency"), "latency", "t")
    assert [row[0].text for row in table.rows] == list(NAMES.values())
    assert table.head == ("model", "128", "512", "1,024", "2,048", "4,096", "ran with")
    assert cells(table, "BERT") == [["**5.220**", "**5.331**", "**5.702**", "15.12", "43.42", "sdpa"]]
    assert cells(table, "ModernBERT") == [["333.0", MISSING, MISSING, MISSING, "333.0", "sdpa"]]
    assert cells(table, "MaBERT")[0][3:5] == ["**13.91**", "**34.70**"]


def test_a_model_that_ran_otherwise_at_other_lengths_is_told_with_them(load):
    compiled = {"setting": "eager, compiled"}
    rows = [raw("latency", "deberta", 128, 1.0, setting="eager, prepacked"), raw("latency", "bert", 128, 1.0)]
    rows += [raw("latency", "deberta", length, 1.0, **compiled) for length in (1024, 2048, 4096)]
    rows += [raw("latency", "bigbird", 128, **{**SLOW, "setting": None})]
    rows += [raw("latency", "albert", length, 1.0, setting="ab"[length == 512]) for length in (128, 512, 1024)]
    results = load(rows)
    table = measured_grid(results, results.table(CPU, "latency"), "latency", "t")
    assert [cells(table, name)[0][-1] for name in ("DeBERTa", "BERT", "BigBird", "ALBERT")] == [
        "eager, prepacked (128); eager, compiled (1,024 to 4,096)",
        "sdpa",
        MISSING,
        "a (128); b (512); a (1,024)",
    ]


def test_the_batch_is_that_of_the_numbers(load):
    slow = raw("training", "bert", 512, batch=1, **SLOW)
    assert batch_of(load([raw("training", "bert", 128, 1.0), slow]).table(CPU, "training")) == "32"
    assert batch_of(load([slow]).table(CPU, "training")) == "1"


def test_the_memory_table_has_parameters_beside_the_papers(load):
    rows = [raw("memory", "mabert", 128, 150.0), raw("memory", "modernbert", 128, 160.0, weights_mib=120.0)]
    rows.append(raw("memory", "modernbert", 512, 170.0, weights_mib=121.0))
    results = load(rows, parameters={"mabert": 120_163_586})
    table = measured_grid(results, results.table(CPU, "memory"), "memory", "t")
    assert cells(table, "MaBERT") == [["120.164", "205.322", "100.0", "**150.0**", MISSING, "sdpa"]]
    assert cells(table, "ModernBERT") == [[MISSING, MISSING, "120.0-121.0", "160.0", "**170.0**", "sdpa"]]


def test_the_papers_table_of_memory_has_its_parameters_and_what_is_known_of_them():
    grid = paper_grid("memory", "name")
    assert grid.head[:3] == ("the paper's", "params (M)", "128")
    assert [cell.text for cell in grid.rows[-1]][:3] == ["MaBERT", "205.322", "808.787"]
    assert grid.notes == (f"{FLAG}{paper.MEMORY.provenance}.", f"{FLAG}{paper.PARAMETERS.provenance}.")
    assert "params (M)" not in paper_grid("latency", "name").head


def test_what_has_no_number_says_why(load):
    rows = [
        raw("latency", "bert", 128, 5.0),
        raw("latency", "bert", 512, **SLOW),
        raw("latency", "bert", 1024, status="out of memory", reason="CUDA out of memory"),
        raw("latency", "bert", 2048, reason="a | b"),
        raw("latency", "bert", 4096, status="too slow", reason="two minutes"),
        raw("latency", "albert", 512, 1.0),
    ]
    results = load(rows)
    table = measured_grid(results, results.table(CPU, "latency"), "latency", "t")
    bert = ["5.000", "too slow (> 120 s)", "out of memory", "failed: a | b", "too slow: two minutes", "sdpa"]
    assert [cell.text for cell in table.rows[0]] == ["BERT", *bert]
    assert cells(table, "ALBERT") == [[MISSING, "**1.000**", *[MISSING] * 3, "sdpa"]]
    assert "CUDA out of memory" not in to_markdown(table)


def test_the_spread_table_has_fastest_slowest_and_samples_of_what_was_measured(load):
    results = load([raw("latency", "bert", 128, 20.0), raw("latency", "bert", 512), raw("latency", "albert", 128)])
    table = spread_grid(results.table(CPU, "latency"), "latency", "t")
    assert cells(table, "BERT") == [["18.00-30.00 (15)", MISSING]]
    assert "ALBERT" not in to_markdown(table)


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12,346"), (1234.5, "1,234"), (123.45, "123.5"), (1.23456, "1.235"), (0.05, "0.05000")],
)
def test_numbers_have_four_digits(value, text):
    assert number(value) == text


def test_a_missing_baseline_is_named_and_never_averaged_over_in_silence(load):
    rows = [row for row in whole() if (row["measure"], row["length"]) == ("training", 4096)]
    four = "1.73 over the 4 measured (the paper: 2.36)"
    by_rows = {
        f"not over all five (DeBERTa: not measured), {four}": [],
        f"not over all five (DeBERTa: out of memory), {four}": [
            raw("training", "deberta", 4096, status="out of memory")
        ],
        f"not over all five (DeBERTa: too slow (> 120 s)), at least **8.61**, {four}": [
            raw("training", "deberta", 4096, **SLOW)
        ],
    }
    for text, extra in by_rows.items():
        table = load([row for row in rows if row["model"] != "deberta"] + extra).table(CPU, "training")
        assert headline("training", table) == f"Training step: {text}"


def test_a_headline_without_mabert_says_so(load):
    table = load([raw("training", "mabert", 4096, **SLOW), raw("training", "bert", 4096, 1.0)]).table(CPU, "training")
    assert "no number of MaBERT's, too slow (> 120 s)" in headline("training", table)


def test_ratios_stand_above_the_papers(load):
    rows = [raw("latency", "mabert", 2048, 10.0), raw("latency", "mabert", 4096, 10.0)]
    rows += [raw("latency", model, 4096, 20.0) for model in paper.BASELINES if model != "deberta"]
    rows += [raw("latency", "bert", 2048, 30.0), raw("latency", "modernbert", 4096, 5.0)]
    table = ratios("latency", load(rows).table(CPU, "latency"), "t")
    assert cells(table, "mean of the paper's five baselines") == [["3.00 over 1 of 5", "2.00 over 4 of 5"]]
    assert cells(table, "the same without DeBERTa") == [["3.00 over 1 of 4", "2.00"]]
    assert cells(table, "BERT alone") == [["3.00", "2.00"]]
    assert cells(table, "lowest measured rival") == [["3.00 (BERT)", "0.50 (ModernBERT)"]]
    assert cells(table, "mean of the paper's five baselines, in the paper") == [["2.25", "2.43"]]
    assert cells(table, "the same without DeBERTa, in the paper") == [["1.78", "1.55"]]
    assert cells(table, "BERT alone, in the paper") == [["1.09", "1.25"]]
    assert cells(table, "lowest rival, in the paper") == [["1.09 (BERT)", "1.25 (BERT)"]]


def test_steps_that_were_put_together_are_told(load):
    rows = [raw("training", "bert", 512, 5.0, micro_batch=2), raw("training", "longformer", 512, 5.0, micro_batch=8)]
    rows += [raw("training", "bert", 128, 5.0, micro_batch=8), raw("latency", "bert", 128, 5.0)]
    report = efficiency_report(load(rows))
    assert report.count("texts of a micro-batch: 8 at 128, 2 or 8 at 512.") == 1
    assert "micro-batch" not in efficiency_report(load([raw("training", "bert", 128, 5.0, micro_batch=32)]))


def test_what_took_turns_with_mabert_alone_is_set_beside_mabert_in_those_turns(load):
    rows = [raw("training", "mabert", length, 10.0) for length in (128, 512)]
    rows += [raw("training", "bert", length, value, anchor_ms=20.0) for length, value in ((128, 30.0), (512, 10.0))]
    rows += [raw("training", "albert", 512, 9.0, anchor_ms=6.0), raw("training", "modernbert", 128, 14.0)]
    table = load(rows).table(CPU, "training")
    assert cells(ratios("training", table, "t"), "lowest measured rival") == [["1.40 (ModernBERT)", "0.50 (BERT)"]]
    assert cells(crossings({"training": table}, "t"), "BERT")[0][0].startswith("only up to about ")
    assert cells(measured_grid(load(rows), table, "training", "t"), "BERT")[0][0] == "30.00", "what was measured"


def test_what_is_of_another_run_is_told_and_nothing_is_fitted_across_runs(load):
    first = [raw("latency", model, length, length / 2) for model in ("bert", "mabert") for length in (512, 4096, 8192)]
    second = [raw("latency", model, length, length / 4) for model in ("bert", "mabert") for length in (128, 512, 4096)]
    results = load(first, [*second, raw("latency", "albert", 512, 9.0)], [raw("latency", "modernbert", 128, 1.0)])
    report = efficiency_report(results)
    assert "Of another run than the rest: 8,192 tokens (1.json); 128 tokens of ModernBERT (3.json)." in report
    growth = time_growth({"latency": results.table(CPU, "latency")}, "t")
    assert cells(growth, "MaBERT")[0][0] == "1.00 (2: 512-4,096)", "across both it would be 1.19"
    memory = [
        [raw("memory", "bert", length, 100 + factor * length) for length in lengths]
        for factor, lengths in ((1, (512, 1024, 2048)), (9, (4096,)))
    ]
    assert cells(memory_growth(load(*memory).table(CPU, "memory"), "t"), "BERT")[0][2] == "1.00 (3: 512-2,048)"
    assert "Of another run" not in efficiency_report(load(first))


def test_remarks_on_a_file_stand_beside_its_name(load):
    report = efficiency_report(load([raw("latency", "bert", 128, 1.0)], remarks=["a machine that was busy", "two"]))
    assert "- Of `1.json`: a machine that was busy\n- Of `1.json`: two\n" in report


def test_memory_grows_above_the_weights(load):
    rows = [raw("memory", "mabert", length, 100 + length / 50) for length in (512, 1024)]
    rows.append(raw("memory", "mabert", 2024, 103 + 2024 / 50, weights_mib=103.0))
    whole_peak, papers, *above = cells(memory_growth(load(rows).table(CPU, "memory"), "t"), "MaBERT")[0]
    assert (whole_peak, papers) == ("0.19 (3: 512-2,024)", "0.50 (4: 512-4,096)")
    assert above == ["1.00 (3: 512-2,024)", "23.0 (1,024-2,024)", "588.9 (2,048-4,096)", "20.0 (1,024-2,024)"]


def test_crossings_name_every_rival_and_the_papers(load):
    rows = [raw("latency", "mabert", length, 10.0) for length in (128, 512)]
    rows += [
        raw("latency", "bert", 128, 5.0),
        raw("latency", "bert", 512, 20.0),
        raw("latency", "modernbert", 128, 5.0),
    ]
    table = crossings({"latency": load(rows).table(CPU, "latency")}, "t")
    assert cells(table, "BERT") == [["from about 256 on", "from about 1,850 on"]]
    assert cells(table, "ModernBERT") == [["not within the measured lengths (128-128)", MISSING]]
    assert not cells(table, "MaBERT")


def test_stretches_in_words():
    flat = dict.fromkeys((100, 400, 1600), 2.0)
    assert stretches(flat, dict.fromkeys(flat, 3.0)) == "from the shortest length on"
    assert stretches(flat, dict.fromkeys(flat, 1.0)) == "not within the measured lengths (100-1,600)"
    assert stretches(flat, {100: 4.0, 400: 1.0, 1600: 1.0}) == "only up to about 200"
    assert stretches(flat, {100: 1.0, 400: 4.0, 1600: 1.0}) == "from about 200 to 800"
    assert stretches(flat, {100: 4.0, 400: 1.0, 1600: 4.0}) == "up to about 200, from about 800 on"
    assert stretches(flat, {}) is None


def test_throughput_tells_its_share_its_machine_and_its_spread():
    row = {"lengths": "short", "model": "bert", "status": "measured", "batch": 8, "tokens": 500}
    row |= {"tokens_per_second": 1000.0, "fastest_ms": 400.0, "slowest_ms": 1000.0}
    slow = {**row, "model": "deberta", "status": "too slow", "tokens_per_second": None, "fastest_ms": None}
    environment = {"processor": "some", "threads": 2, "packages": {"torch": "3"}, "commit": "abc"}
    result = {
        "environment": environment,
        "dtype": "float32",
        "share": {"short": 16 / 8192},
        "lengths": {"short": [9] * 16},
        "rows": [row, slow],
    }
    heading, origin, speeds, spread = throughput_section([("t.json", result)])
    assert (heading.text, origin.lines) == ("Throughput", ("`t.json`: some, 2 threads, torch 3, commit abc",))
    assert speeds.notes[1] == "Of the texts that ModernBERT's protocol has of each kind: 16 of short (0.20%)."
    assert [[cell.text for cell in line] for line in spread.rows] == [["BERT", "500-1,250"]]
    older = {**result, "rows": [{name: value for name, value in row.items() if not name.endswith("_ms")}]}
    assert len(list(throughput_section([("t.json", older)]))) == 3
