"""The report is one page with nothing fetched, the same as Markdown, and a file of each table and figure."""

import csv
import re
import shutil
from dataclasses import replace

import pytest

from mabert_lab import cli
from mabert_lab.report import paper
from mabert_lab.report.document import Fold, Grid, Heading, Items, Text, as_html, as_markdown, unfolded
from mabert_lab.report.grid import to_csv
from mabert_lab.report.machine import code_of
from mabert_lab.report.sources import Found, find
from mabert_lab.report.whole import parts, write_report
from tests.lab.report.studies import ENVIRONMENT, read, row
from tests.lab.report.test_grid import cells_of_latex, cells_of_markdown

FETCHED = re.compile(r"""(?:src|href)\s*=\s*["'](?!#)|url\((?!#)|@import|<link|<iframe""")
NOTHING = Found((), None, (), (), ())
KNOWN_NAMES = ("http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink")


@pytest.fixture(scope="module")
def found(results):
    return find([results])


@pytest.fixture(scope="module")
def written(found, tmp_path_factory):
    output = tmp_path_factory.mktemp("report") / "out/report.html"
    return output, write_report(found, output)


@pytest.mark.slow
def test_the_page_fetches_nothing(written):
    page = written[0].read_text(encoding="utf-8")
    for name in KNOWN_NAMES:
        page = page.replace(name, "")
    assert "http" not in page
    assert not FETCHED.search(re.sub(r'xlink:href="#', "", page))


def test_the_page_has_every_part_and_links_to_them(written):
    page = written[0].read_text(encoding="utf-8")
    anchors = re.findall(r'<a href="#([^"]+)"', page)
    assert anchors == re.findall(r'<h2 id="([^"]+)"', page)
    assert {"claims", "limits-of-these-numbers", "padding", "memory-and-time-over-length", "throughput"} < set(anchors)
    assert page.index('id="claims"') < page.index('id="study-of-pattern-tiny"')


def test_ids_are_unique(written):
    page = re.sub(r"<svg.*?</svg>", "", written[0].read_text(encoding="utf-8"), flags=re.DOTALL)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_what_limits_the_numbers_is_said(written):
    for path in (written[0], written[0].with_suffix(".md")):
        text = path.read_text(encoding="utf-8")
        assert "The seeds vary fine-tuning only." in text
        assert "share one pretrained model" in text
        assert "with five pairs they are too narrow" in text
        assert "predicted from 50% ratios" in text.replace("&quot;", '"')


@pytest.mark.slow
def test_studies_with_too_few_seeds_are_named_before_their_verdicts(found):
    def told(studies):
        return [
            part.text
            for part in parts(replace(found, studies=studies))
            if isinstance(part, Text) and "Too few" in part.text
        ]

    assert told(found.studies) == []
    few = read([row("map", {"cola": [0.5] * 4, "rte": [0.5] * 2}, "map")], "pooling", title="Pooling")
    assert told((*found.studies, few)) == [
        "**Too few seeds to decide any claim on scores**, 5 being needed: Pooling (4)."
    ]


@pytest.mark.slow
def test_every_table_has_its_three_files_which_agree(found, written):
    output, files = written
    grids = [part for part in unfolded(parts(found)) if isinstance(part, Grid)]
    names = [grid.name for grid in grids]
    assert len(names) == len(set(names)) > 30
    for grid in grids:
        path = output.with_suffix("") / grid.name
        assert {path.with_suffix(suffix) for suffix in (".csv", ".md", ".tex")} <= set(files)
        expected = [list(grid.head), *([cell.plain for cell in row] for row in grid.rows)]
        assert path.with_suffix(".csv").read_text(encoding="utf-8") == to_csv(grid)
        text = path.with_suffix(".md").read_text(encoding="utf-8")
        assert cells_of_markdown("\n".join(line for line in text.splitlines() if line.startswith("|"))) == expected
        assert all(told in text for told in (grid.title, *grid.notes))
        tex = path.with_suffix(".tex").read_text(encoding="utf-8")
        signs = "^~\\{}\N{MULTIPLICATION SIGN}≥\N{DAGGER}"
        odd = any(sign in cell for row in expected for cell in row for sign in signs)
        if "longtable}" not in tex.partition("\n")[2] and not odd:
            assert cells_of_latex(tex) == expected


def test_the_markdown_links_to_the_figures_beside_it(written):
    output, files = written
    text = output.with_suffix(".md").read_text(encoding="utf-8")
    links = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(links) > 8
    assert {output.parent / link for link in links} == {path for path in files if path.suffix == ".svg"}
    assert {path for path in files if not path.is_file()} == set()


@pytest.mark.slow
def test_tables_of_a_former_report_go_and_nothing_else(found, tmp_path):
    output, folder = tmp_path / "report.html", tmp_path / "report"
    write_report(found, output)
    before = {file.name for file in folder.iterdir()}
    (folder / "notes.txt").write_text("mine")
    listing = folder / "files.txt"
    listing.write_text(listing.read_text() + "../report.html.md\n..\n\n")
    (tmp_path / "report.html.md").write_text("elsewhere")
    fewer = replace(found, studies=found.studies[1:])
    kept = {path.name for path in write_report(fewer, output) if path.parent == folder}
    assert {file.name for file in folder.iterdir()} == {"notes.txt", "files.txt", *kept}
    assert before - kept - {"files.txt"}, "there was something to remove"
    assert (tmp_path / "report.html.md").is_file()


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("README.html", "README.md"),
        ("report.html", "report.html"),
        ("results.html", "results/claims.csv"),
        ("results.html", "results/files.txt"),
    ],
)
def test_what_no_report_wrote_is_not_written_over(one_study, tmp_path, name, there):
    place = tmp_path / "mine" / there
    place.parent.mkdir(parents=True)
    place.write_text("# MaBERT\n")
    with pytest.raises(ValueError, match=f"{there} is there already, and no report wrote it"):
        write_report(find([one_study]), tmp_path / "mine" / name)
    assert place.read_text() == "# MaBERT\n"
    assert [file for file in (tmp_path / "mine").rglob("*") if file.is_file()] == [place], "nothing is begun"


def test_what_came_into_the_folder_of_a_report_is_not_written_over(one_study, tmp_path):
    output = tmp_path / "report.html"
    write_report(find([one_study]), output)
    listing = output.with_suffix("") / "files.txt"
    listing.write_text(listing.read_text().replace("claims.tex\n", ""))
    with pytest.raises(ValueError, match=r"claims\.tex is there already"):
        write_report(find([one_study]), output)


def in_repository(file):
    return file.name == "report.md" or file.suffix == ".svg"


@pytest.mark.parametrize(
    ("kept", "listed"),
    [
        pytest.param(lambda file: file.name != "files.txt", None, id="of before there were lists"),
        pytest.param(in_repository, None, id="as a repository keeps it"),
        pytest.param(in_repository, "claims.csv\n", id="with another's list"),
        pytest.param(lambda file: file.name != "report.md", None, id="cut off before its Markdown"),
    ],
)
def test_a_former_report_is_written_over(one_study, tmp_path, kept, listed):
    output, folder = tmp_path / "report.html", tmp_path / "report"
    files = write_report(find([one_study]), output)
    for file in (output, output.with_suffix(".md"), *folder.iterdir()):
        if not kept(file):
            file.unlink()
    if listed is not None:
        (folder / "files.txt").write_text(listed)
    assert write_report(find([one_study]), output) == files


def test_every_seed_is_in_a_file(written):
    path = written[0].with_suffix("") / "pattern-tiny-seeds.csv"
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 8 * 3 * 5
    assert {line["task"] for line in lines} == {"CoLA", "RTE", "MNLI-m, 13k-row sample"}


@pytest.mark.slow
def test_the_papers_tables_that_nothing_is_set_beside_are_shown_whole(found):
    def told(found):
        folds = [
            part for part in parts(found) if isinstance(part, Fold) and part.summary.startswith("The paper's tab:")
        ]
        text = " ".join(part.text for part in parts(found) if isinstance(part, Text))
        return [fold.summary.split(":")[1] for fold in folds], "The paper's curves of drift" in text

    efficiency = ["eff_memory", "eff_infer", "eff_train"]
    assert told(found) == ([], False)
    assert told(replace(found, efficiency=None)) == (efficiency, False)
    assert told(replace(found, drifts=())) == ([], True)
    scores = ["pattern_glue", "glue_10pct", "glue_25pct", "glue_50pct", "glue_full_budget"]
    assert told(NOTHING) == ([*scores, "ablation_integration", "pooling_pred_100pct", *efficiency], True)
    (latency,) = [part for part in unfolded(parts(NOTHING)) if isinstance(part, Grid) and "infer" in part.title]
    assert [cell.text for cell in latency.rows[0]][:2] == ["BERT", f"{paper.LATENCY.rows['bert'][128]:.3f}"]


@pytest.fixture
def one_study(results, tmp_path):
    """A folder with the smallest of them."""
    folder = tmp_path / "one"
    folder.mkdir()
    shutil.copy(results / "2.json", folder)
    return folder


def test_the_same_results_make_the_same_files(one_study, tmp_path):
    first, again = (write_report(find([one_study]), tmp_path / name / "report.html") for name in "ab")
    for ours, theirs in zip(first, again, strict=True):
        assert ours.read_bytes() == theirs.read_bytes()


def test_every_machine_and_commit_that_cells_ran_on_is_named():
    ran = [ENVIRONMENT, {**ENVIRONMENT, "commit": "def"}, {**ENVIRONMENT, "processor": "another"}]
    (told, *_) = (
        part
        for part in parts(Found((read([row("MaBERT", {})], environments=ran),), None, (), (), ()))
        if isinstance(part, Items)
    )
    assert all(text in told.lines[0] for text in ("commit abc", "commit def", "another"))


def test_code_that_was_installed_is_known_by_its_version():
    ran = [{**ENVIRONMENT, "commit": None, "packages": {**ENVIRONMENT["packages"], "mabert": "1.2"}}]
    found = Found((read([row("MaBERT", {})], environments=ran),), None, (), (), ())
    told = next(part for part in parts(found) if isinstance(part, Items))
    assert "torch 2.0, mabert 1.2" in told.lines[0]
    assert code_of({"commit": None}) == "mabert of an unknown version"


def test_the_output_must_be_a_page(found, tmp_path):
    with pytest.raises(ValueError, match=r"report\.pdf; it must end in \.html"):
        write_report(found, tmp_path / "report.pdf")


def test_the_command_writes_and_names_what_it_wrote(one_study, tmp_path, capsys):
    output = tmp_path / "r.html"
    assert cli.main(["report", str(one_study), "-o", str(output)]) == 0
    said = capsys.readouterr().out
    assert f"{output}: the report\n" in said
    assert f"{output.with_suffix('.md')}: the same as Markdown\n" in said
    assert output.is_file()


def test_the_command_refuses_in_one_line(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_markup_is_escaped_and_marked_up():
    assert as_html(Text("a < b, `x<y`, **so**")) == "<p>a &lt; b, <code>x&lt;y</code>, <strong>so</strong></p>"
    assert as_html(Heading(2, "A & B")) == '<h2 id="a-b">A &amp; B</h2>'
    assert as_markdown(Fold("more", (Text("inside"),)), None) == "**more**\n\ninside\n"
