"""A table says the same in each of its forms."""

import csv
import io
import re
import shutil
import subprocess
from html import unescape

import pytest

from mabert_lab.report.grid import (
    FLAG,
    Cell,
    Grid,
    missing,
    to_csv,
    to_html,
    to_markdown,
    with_best,
    words,
)
from mabert_lab.report.latex import PACKAGES, latex, to_latex

GRID = Grid(
    "name",
    "A title",
    ("arm", "CoLA (MCC)", "verdict | why"),
    (
        (Cell("a_b"), Cell("0.500", "± 0.010 (5)", 0.5, bold=True), Cell("holds & stays")),
        (Cell("50%"), Cell("-0.100", "[-0.200, +0.050] (5)", -0.1), Cell("a|b")),
        (Cell("<c>"), missing("failed: RuntimeError"), Cell("-")),
    ),
    ("A note.", f"{FLAG}doubtful."),
)


def cells_of_csv(text):
    return list(csv.reader(io.StringIO(text)))


def cells_of_markdown(text):
    lines = [line for line in text.splitlines() if not line.startswith("|---")]
    split = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [[undone(cell.strip(), {"\\|": "|", "**": "", "&lt;": "<"}) for cell in line] for line in split]


def undone(text, signs):
    for sign, plain in signs.items():
        text = text.replace(sign, plain)
    return text


def cells_of_latex(text):
    body = text[text.index("\\toprule") : text.index("\\bottomrule")]
    lines = [line for line in body.splitlines() if line.endswith("\\\\")]
    plain = [
        re.sub(r"\\textbf\{([^{}]*)\}", r"\1", re.sub(r"\{\\scriptsize (.*?)\}(?= &| \\\\)", r"\1", line))
        for line in lines
    ]
    signs = {r"$\pm$": "±", r"\textbar{}": "|", "$-$": "-", "--": "\N{EN DASH}", "$<$": "<", "$>$": ">", "{[}": "["}
    split = [re.split(r"(?<!\\)&", undone(line, signs)[:-3]) for line in plain]
    return [[re.sub(r"\\([&%$#_{}])", r"\1", cell.strip()) for cell in line] for line in split]


def cells_of_html(text):
    rows = re.findall(r"<tr>(.*?)</tr>", text)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]
    return [[unescape(re.sub(r"<[^>]*>", "", cell)) for cell in line] for line in cells]


def test_every_form_has_the_same_cells():
    expected = [list(GRID.head), *([cell.plain for cell in row] for row in GRID.rows)]
    assert cells_of_markdown(to_markdown(GRID)) == expected
    assert cells_of_html(to_html(GRID)) == expected
    assert cells_of_latex(to_latex(GRID)) == expected


def test_the_best_is_bold_in_each_form():
    assert "**0.500 ± 0.010 (5)**" in to_markdown(GRID)
    assert r"\textbf{0.500}" in to_latex(GRID)
    assert "<b>0.500</b>" in to_html(GRID)


def test_numbers_stand_to_the_right_and_text_to_the_left():
    assert to_markdown(GRID).splitlines()[1] == "|---|---:|---|"
    assert r"\begin{tabular}{lrl}" in to_latex(GRID)
    only_missing = Grid("n", "t", ("a", "b"), ((Cell("x"), missing()),))
    assert [only_missing.is_number(column) for column in (0, 1)] == [False, True]


def test_html_sorts_by_the_number_and_knows_what_is_missing():
    page = to_html(GRID)
    assert 'data-value="-0.1"' in page
    assert '<td class="number">\N{EN DASH} <small>failed: RuntimeError</small></td>' in page
    assert '<p class="note warning">Flagged: doubtful.</p>' in page


def test_latex_is_whole_and_its_signs_are_escaped():
    text = to_latex(GRID)
    assert text.count("\\begin{") == text.count("\\end{") == 3
    assert text.startswith("% \\usepackage{array, booktabs, adjustbox, longtable}\n")
    assert r"\label{tab:name}" in text
    assert r"\caption[{A title}]{A title. A note. Flagged: doubtful.}" in text
    assert latex("a-b 1-2 -3 50% x_1") == r"a-b 1-2 $-$3 50\% x\_1"


def test_latex_does_not_take_a_cell_for_an_option_of_the_line_break_before_it():
    text = to_latex(Grid("n", "t", ("a",), (words("[CLS] x"), words("*"))))
    assert "\n{[}CLS] x \\\\\n{*} \\\\\n" in text


def test_the_best_of_a_column_is_bold_and_alone_nothing_is():
    rows = [(Cell("a", value=value),) for value in (1.0, 3.0, 3.0, 2.0)]
    assert [row[0].bold for row in with_best([*rows, (missing(),)], 0)] == [False, True, True, False, False]
    assert [row[0].bold for row in with_best(rows, 0, lowest=True)] == [True, False, False, False]
    assert not with_best([(Cell("a", value=1.0),), (missing(),)], 0)[0][0].bold


def test_csv_has_numbers_as_numbers_and_what_belongs_to_them_beside_them():
    grid = Grid(
        "name",
        "t",
        ("arm", "tokens", "CoLA"),
        (
            (Cell("a, b"), Cell("4,096", value=4096.0), Cell("0.500", "± 0.010 (5)", 0.5)),
            (Cell("c"), missing(), missing("failed")),
        ),
        ("A note.", f"{FLAG}doubtful.", f"{FLAG}predicted."),
    )
    assert cells_of_csv(to_csv(grid)) == [
        ["arm", "tokens", "CoLA", "CoLA, further", "flagged"],
        ["a, b", "4096", "0.500", "± 0.010 (5)", "doubtful. predicted."],
        ["c", "", "", "failed", "doubtful. predicted."],
    ]
    assert cells_of_csv(to_csv(Grid("n", "t", ("a",), (words("x"),)))) == [["a"], ["x"]]


SENTENCES = Grid(
    "a_name of 50%",
    "Sentences",
    ("claim", "verdict", "n"),
    ((*words("That which takes more than forty signs, such as this,\n\nis broken over lines.", "holds"), missing()),),
    ('Δ ≤ 1 · 2 → 3, “quoted”, "so", 5 † of * [x].',),
)
EMPTY = Grid("empty", "Nothing measured", ("arm", "score"), ())


def test_sentences_break_over_lines_and_pages():
    text = to_latex(SENTENCES)
    assert text.count("\\begin{longtable}") == text.count("\\end{longtable}") == 1
    assert text.count("\\arraybackslash}p{") == 3
    assert r"\label{tab:a-name-of-50-}" in text
    assert "\n\n" not in text


def test_an_empty_table_says_so():
    assert "\\midrule\n\\multicolumn{2}{c}{--} \\\\\n\\bottomrule" in to_latex(EMPTY)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex")
def test_latex_compiles(tmp_path):
    tables = "\n".join(map(to_latex, (GRID, SENTENCES, EMPTY)))
    packages = "".join(f"\\usepackage{{{name}}}" for name in PACKAGES)
    document = f"\\documentclass{{article}}{packages}\\begin{{document}}\\listoftables\n{tables}\\end{{document}}"
    (tmp_path / "tables.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


def test_a_row_of_another_width_is_refused():
    with pytest.raises(ValueError, match="name: a row has 1 cells; the table has 2 columns"):
        Grid("name", "t", ("a", "b"), (words("x"),))
