"""The report is one page with nothing fetched, the same as Markdown, its figures, and its numbers as CSV."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path

import pandas as pd
import pytest

from mabert_lab import cli, report
from mabert_lab.report import whole
from mabert_lab.report.charts import loss_chart, on_paper, stage_ends
from mabert_lab.report.document import Page, markdown, number_in, table, with_best
from mabert_lab.report.found import Found, find
from mabert_lab.report.paper import CLAIMS
from mabert_lab.report.verdicts import claim_tables, judged
from mabert_lab.report.whole import absent, write_report
from tests.lab.pages import fetched
from tests.lab.report.studies import like_the_paper, read, row, study


def page_of(every):
    return whole.report(every, judged(every))


@pytest.fixture(scope="module")
def found(results):
    return find([results])[0]


@pytest.fixture(scope="module")
def written(found, tmp_path_factory):
    output = tmp_path_factory.mktemp("report") / "out/report.html"
    return output, write_report([found], output)


@pytest.fixture
def one_study(results, tmp_path):
    """A folder with the smallest of them."""
    folder = tmp_path / "one"
    folder.mkdir()
    shutil.copy(results / "2.json", folder)
    return folder


@pytest.mark.slow
def test_the_page_fetches_nothing_and_its_ids_are_unique(written):
    page = written[0].read_text(encoding="utf-8")
    assert not fetched(page)
    ids = re.findall(r'\bid="([^"]+)"', re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL))
    assert len(ids) == len(set(ids))
    assert re.findall(r'<a href="#([^"]+)"', page) == ids


@pytest.mark.slow
def test_what_is_decided_comes_first_then_ones_own_results_then_what_was_not_measured(written):
    for suffix in (".html", ".md"):
        text = written[0].with_suffix(suffix).read_text(encoding="utf-8")
        order = ["What is decided", "Study of pattern (4.1 M parameters, 0.4 M tokens)", "Memory and time over length"]
        order += ["Padding", "Not measured, and every claim", "The limits of these numbers"]
        order += ["Where and when it was measured"]
        places = [re.search(rf"(<h2[^>]*>|\n## ){re.escape(title)}", text).start() for title in order]
        assert places == sorted(places)
        assert text.index("Does the paper hold?") < text.index("each pretrained once") < places[0]
        assert "predicted from 50% ratios" in text.replace("&quot;", '"').replace("&#34;", '"')
        assert "share one pretrained model" in text
    page = written[0].read_text(encoding="utf-8")
    assert page.rindex("Where and when it was measured") < page.index("commit abc"), "commits stand at the end"
    assert "<th" in page


@pytest.mark.slow
def test_a_claim_stands_in_one_row_of_the_first_tables(found):
    text = page_of([found]).text.partition("<details><summary>Every claim at every place")[0]
    for claim in CLAIMS:
        assert text.count(f"| {claim.claim} |") == 1


def test_the_markdown_is_what_stands_open_on_the_page(written):
    page, text = (written[0].with_suffix(suffix).read_text(encoding="utf-8") for suffix in (".html", ".md"))
    heads = [
        [unescape(head) for head in re.findall(pattern, each)]
        for pattern, each in ((r"<h2[^>]*>(.*?)</h2>", page), (r"(?m)^## (.*)$", text))
    ]
    assert heads[0] == heads[1]
    for folded in ("<summary>", "Machines, dates, commits"):
        assert folded in page
        assert folded not in text
    assert not re.search(r"(?m)^## .*\n+(## |\*The HTML|\Z)", text), "each heading has something below it"


def test_the_markdown_links_to_the_figures_beside_it(written):
    output, files = written
    links = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", output.with_suffix(".md").read_text(encoding="utf-8"))
    assert len(links) == 5
    assert {output.parent / link for link in links} == {path for path in files if path.suffix == ".svg"}
    assert all(path.is_file() for path in files)


def test_numbers_are_in_files(written):
    folder = written[0].with_suffix("")
    frames = {path.stem: pd.read_csv(path) for path in written[1] if path.suffix == ".csv"}
    assert set(frames) == {"claims", "scores", "memory-and-time", "padding"}
    assert (folder / "scores.csv").is_file()
    assert set(frames["scores"].query("arm == 'MMTMMTMMTMMT'")["seed"]) == set(range(5))
    assert len(frames["scores"].query("study == 'pattern'")) == 8 * 3 * 5
    assert set(frames["claims"]["verdict"]) <= {"holds", "does not hold", "cannot be told", "not measured"}


def test_too_few_seeds_are_said_before_the_verdicts():
    few = read([row("map", {"cola": [0.5] * 4}, "map")], "pooling", title="Pooling")
    said, _, _ = page_of([Found((few,))]).text.partition("## What is decided")
    assert "**Too few seeds to decide any claim on scores**, 5 being needed: Pooling (4)\n" in said
    unscored = read([row("map", {}, "map", pretraining={})], "pooling")
    assert "every score and difference" in page_of([Found((unscored,))]).text


def test_where_nothing_is_decided_what_is_open_comes_first_with_the_words_explained():
    few = like_the_paper("pooling", 1.0)
    for each in (scores for arm in few for task in arm["scores"].values() for scores in task.values()):
        del each["4"]
    text = page_of([Found((read(few, "pooling", ("cola", "rte")),))]).text
    assert "## What is decided" not in text
    _, _, still_open = text.partition("## What cannot be told")
    first, _, _ = still_open.partition("\n## ")
    assert "Places of the paper go by its labels" in first, "the words are explained below the first tables"


def test_the_papers_tables_that_nothing_is_set_beside_are_found(found):
    def labels(found):
        return {printed.label for printed in absent([found])}

    assert labels(found) == set()
    costs = {"tab:eff_memory", "tab:eff_infer", "tab:eff_train"}
    assert labels(replace(found, costs=None)) >= costs
    assert len(labels(replace(found, studies=()))) == 7


@pytest.mark.slow
def test_a_folder_beside_another_changes_none_of_its_verdicts(one_study, tmp_path):
    other = tmp_path / "toy"
    other.mkdir()
    toy = [row(each["arm"], {"cola": [0.0] * 5}, each["paper"]) for each in like_the_paper("pooling", 1.0)]
    (other / "2.json").write_text(json.dumps(study(toy, "pooling")), encoding="utf-8")
    alone = find([one_study])
    ((name, counts),) = claim_tables(alone, judged(alone))["counts"].items()
    kinds = judged(alone)[""]["claim"].drop_duplicates().map(lambda claim: claim.kind).value_counts()
    parts = [sum(map(int, re.findall(r"\d+", part))) for part in counts.split("; ")]
    assert parts == [kinds[kind] for kind in ("scores", "costs", "drift")], "each claim once, with what it is about"
    assert counts.startswith("on scores, holds 2, not measured")
    for places in ([one_study, other], [other, one_study]):
        both = find(places)
        pd.testing.assert_frame_equal(judged(both)[str(one_study)], judged(alone)[""])
        found = claim_tables(both, judged(both))
        assert (name, found["counts"][str(one_study)]) == ("", counts)
        assert {f"verdict, {folder}" for folder in (one_study, other)} < set(found["decided"].columns)
        page = page_of(both)
        assert f"{one_study}: {counts}" in page.text
        assert len(page.linked()) == 2, "studies of one name have figures of their own"
        headings = [line for line in page.text.splitlines() if line.startswith("## Study of pooling")]
        assert [line.rpartition(", from ")[2] for line in headings] == list(map(str, places))


@pytest.mark.slow
def test_files_of_a_former_report_go_and_nothing_else(found, one_study, tmp_path):
    output, folder = tmp_path / "report.html", tmp_path / "report"
    write_report([replace(found, costs=None)], output)
    (folder / "notes.txt").write_text("mine")
    text = tmp_path / "report.md"
    text.write_text(text.read_text(encoding="utf-8") + "[mine](report/notes.txt) ![up](report/..)", encoding="utf-8")
    kept = {path.name for path in write_report(find([one_study]), output) if path.parent == folder}
    assert {file.name for file in folder.iterdir()} == {"notes.txt", *kept}


@pytest.mark.parametrize("there", ["report.md", "report.html", "report/claims.csv"])
def test_what_no_report_wrote_is_not_written_over(one_study, tmp_path, there):
    place = tmp_path / "mine" / there
    place.parent.mkdir(parents=True)
    place.write_text("# MaBERT\n")
    with pytest.raises(ValueError, match=f"{there} is there already, and no report wrote it"):
        write_report(find([one_study]), tmp_path / "mine/report.html")
    assert [file for file in (tmp_path / "mine").rglob("*") if file.is_file()] == [place], "nothing is begun"


@pytest.mark.parametrize("kept", ["all", "as a repository keeps it"])
def test_a_former_report_is_written_over_by_the_same(one_study, tmp_path, kept):
    output, folder = tmp_path / "report.html", tmp_path / "report"
    files = write_report(find([one_study]), output)
    before = [file.read_bytes() for file in files]
    if kept != "all":
        for file in (output, *folder.glob("*.csv")):
            file.unlink()
    assert write_report(find([one_study]), output) == files
    assert [file.read_bytes() for file in files] == before


def test_the_command_writes_and_names_what_it_wrote_and_refuses_in_one_line(one_study, tmp_path, capsys):
    output = tmp_path / "r.html"
    assert cli.main(["report", str(one_study), "-o", str(output)]) == 0
    assert f"{output}: the report\n{output.with_suffix('.md')}: its open parts" in capsys.readouterr().out
    assert output.is_file()
    assert cli.main(["report", str(one_study), "-o", str(tmp_path / "r.pdf")]) == 2
    assert "r.pdf; it must end in .html" in capsys.readouterr().err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert cli.main(["report", str(empty)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_page_draws_its_own_figures_and_no_others():
    text = "a &lt; b, **so** ![seen](beside/f.svg) ![words](https://elsewhere/g.svg) [c](https://elsewhere)"
    html = Page("T < U", text, {"f": "<svg/>"}).html()
    assert '<span class="figure" role="img" aria-label="seen"><svg/></span> words [c](https' in html
    assert "<h1>T &lt; U</h1>" in html
    assert "a &lt; b, <strong>so</strong>" in html


def test_a_table_marks_its_best_and_aligns_its_numbers():
    rows = [("x", "1,000 (2)"), ("y", "5"), ("z", "\N{EN DASH} why")]
    shown = with_best(table("t", ("a|b", "n"), rows, ["n < m"]), [1])
    body = "| a\\|b | n |\n|---|---:|\n| x | **1,000 (2)** |\n| y | 5 |\n| z | \N{EN DASH} why |"
    assert markdown(shown) == f"*t*\n\n{body}\n\n> n &lt; m"
    assert markdown(table("", ("a", "b"), [("x", ""), ("y", "\N{EN DASH}")])) == "| a |\n|---|\n| x |\n| y |"
    assert [*map(number_in, ("**-0.5 (3)**", "≥ 2.0", "1,234.5", "x", ""))] == [-0.5, 2.0, 1234.5, None, None]
    none = [*map(number_in, ("1.2.3", "2026-11-28", "12x", "1e-5"))]
    assert none == [None] * 4, "not numbers as tables have them"
    assert "**" not in str(with_best(table("", ("n",), [("1",), ("1",)]), [0]).values)
    page = Page("t", markdown(table("", ("a", "b"), [("x", "1"), ("y", "2")])), {}).html()
    assert re.findall('data-label="(.)"', page) == list("abab"), "beside each cell, on a phone"


def test_a_loss_chart_has_both_curves_once_and_stages_end_where_their_shares_do():
    history = [{"loss": 5.0, "step": 1}, {"eval_loss": 6.0, "step": 2}, {"eval_loss": 4.0, "step": 3}]
    again = [*history, {"eval_loss": 4.0, "step": 3}]
    assert loss_chart(again) == loss_chart(history), "a resumed run may have measured a step twice"
    assert loss_chart(again).count("held out") == loss_chart(again).count("training") == 1
    assert loss_chart([*history, {"loss": 4.0, "step": 4}]) != loss_chart(history)
    assert stage_ends(3600, [{"share": 0.9}, {"share": 0.1}]) == [pytest.approx(3240)]
    assert on_paper('<svg width="1"></svg>') == '<svg style="background: #fff" width="1"></svg>'


@pytest.mark.slow
def test_importing_the_report_loads_no_torch():
    modules = [f"mabert_lab.report.{file.stem}" for file in Path(report.__file__).parent.glob("[!_]*.py")]
    program = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert modules
    subprocess.run([sys.executable, "-c", program], check=True)
