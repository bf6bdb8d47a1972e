"""What the documents show as code runs, and shows what they say; what they and messages advise is there."""

import argparse
import ast
import itertools
import json
import re
import shlex
import tokenize
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt

from mabert import cli
from mabert_lab.cli import COMMANDS
from mabert_lab.report.drift import cures
from mabert_lab.report.found import find
from mabert_lab.report.whole import write_report
from tests import clients

DOCS = Path(__file__).parents[1] / "docs"
SITE = DOCS.parent / "mkdocs.yml"

RESULTS = DOCS.parent / "benchmarks/results"


def test_the_page_on_padding_has_the_truth_table_of_its_measurement():
    page = (DOCS / "padding.md").read_text(encoding="utf-8")
    (file,) = set(re.findall(r"benchmarks/results/(\S+-drift\.json)", page))
    found = cures(json.loads((RESULTS / file).read_text(encoding="utf-8")), "cls")
    told = re.findall(r"^\| (\w+) \| (causal|centred|either) \| (left|right|left and right) \| `([a-z+]+)`", page, re.M)
    rows = {
        ("random", direction, conv, side, "masked"): cure
        for direction, convs, sides, cure in told
        for conv in {"causal": ["causal"], "centred": ["centered"], "either": ["causal", "centered"]}[convs]
        for side in sides.split(" and ")
    }
    drifting = {how: cure for how, cure in found.items() if how[0] == "random" and how[-1] == "masked"}
    assert rows == {how: cure for how, cure in drifting.items() if cure != "none"}


def anchor(heading):
    """What a link to a heading ends in, by GitHub's rule."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


PAGES = [*DOCS.glob("*.md"), *DOCS.parent.glob("*.md"), *(DOCS.parent / "benchmarks").glob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page):
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, place = target.partition("#")
        file = page.parent / name if name else page
        if ":" in name:
            continue
        there = file.exists()
        if there and place and file.suffix == ".md":
            there = place in map(anchor, re.findall(r"^#+ (.*)", file.read_text(encoding="utf-8"), re.M))
        lost += [] if there else [target]
    assert lost == []


def programs(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)


def whole_lines(block):
    """A block's text, with the lines of each command as one."""
    return re.sub(r"\\\n\s*", "", block.content)


def commands(page):
    """What a page's blocks call `mabert` with, a folder in place of an ellipsis."""
    fences = [each for each in MarkdownIt().parse(page.read_text(encoding="utf-8")) if each.type == "fence"]
    for block in (whole_lines(each) for each in fences if not each.info):
        for words in re.findall(r"(?:^|-m |\| )mabert (.*)", block, re.MULTILINE):
            yield shlex.split(words.replace(" ...", " -o runs/of-several"), comments=True)


@pytest.mark.parametrize("page", [*DOCS.glob("*.md"), DOCS.parent / "README.md"], ids=lambda page: page.name)
def test_every_command_can_be_typed(page):
    for words in commands(page):
        assert callable(cli.parse(words, COMMANDS).run), " ".join(words)


def offered(parser):
    """The options of a command, and what stands behind its name, each with its own."""
    options, below = set(parser._option_string_actions), {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below |= {name: offered(each) for name, each in action.choices.items()}
        elif action.choices and not action.option_strings:  # as the kinds of `bench`
            below |= dict.fromkeys(action.choices, (options, {}))
    return options.union(*(each for each, _ in below.values())), below


OFFERED = offered(cli.parser(COMMANDS))
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
TARGETS = re.findall(r"^([a-z][\w-]*):", (DOCS.parent / "Makefile").read_text(encoding="utf-8"), re.M)
OF_OTHERS = {
    "accelerate": {"--config_file", "--cpu", "--multi_gpu", "--num_processes"},
    "git": {"--error-unmatch", "--porcelain", "--short", "--untracked-files"},
    "pip": {"--exclude-editable", "--no-deps"},
    "sbatch": {"--array", "--gpus", "--requeue", "--signal", "--time", "--wrap"},
    "tensorboard": {"--logdir"},
    "torchrun": {"--nproc-per-node", "--shutdown-timeout"},
}
"""Options of other programs that pages and messages name."""


def not_there(text):
    """Yields the commands, options and make targets that a text names and that do not exist."""
    for call in re.findall(r"(?<![\w.-])(?<!from )mabert (?!needs |serves )([a-z][^`\n;|#]*)", text):
        (options, below), said = OFFERED, "mabert"
        for word in call.split():
            if not below or not re.fullmatch(r"[a-z][a-z-]*", word):
                break
            said = f"{said} {word}"
            if word not in below:
                yield said
                break
            options, below = below[word]
        yield from (f"{said} {option}" for option in OPTION.findall(call) if option not in options)
    known = OFFERED[0].union(*OF_OTHERS.values())
    yield from (option for option in OPTION.findall(text) if option not in known)
    yield from (f"make {target}" for target in re.findall(r"`make ([a-z][\w-]*)", text) if target not in TARGETS)


def said_by(file):
    """Yields what a file says to a reader: a program's literals and comments, a page's code, else all of it."""
    if file.suffix == ".md":
        for block in MarkdownIt().parse(file.read_text(encoding="utf-8")):
            spans = [each.content for each in block.children or () if each.type == "code_inline"]
            for line in (*spans, *(whole_lines(block).splitlines() if block.type == "fence" else ())):
                yield f"`{line}`"
    elif file.suffix == ".py":
        with tokenize.open(file) as lines:
            parts = list(tokenize.generate_tokens(lines.readline))
        yield from (part.string for part in parts if part.type == tokenize.COMMENT)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
    else:
        yield file.read_text(encoding="utf-8")


OF_THE_PRESENT = [
    *(DOCS.parent / "src").rglob("*.py"),
    *(DOCS.parent / "recipes").rglob("*.yaml"),
    *(page for page in PAGES if page.parent.name != "benchmarks"),  # whose pages tell of a day
    *(clients.ROWS, SITE),
]


def test_commands_options_and_targets_that_messages_and_pages_name_are_there():
    naming = re.compile("mabert [a-z]|--[a-z]|`make ")
    files = [file for file in OF_THE_PRESENT if naming.search(file.read_text(encoding="utf-8"))]
    assert [f"{file}: {lost}" for file in files for text in said_by(file) for lost in not_there(text)] == []


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("not as mabert bench throughput writes it", ["mabert bench throughput"]),
        ("run `mabert train` first", ["mabert train"]),
        ("go on by mabert convert --packing", ["mabert convert --packing"]),
        ("shorten them (--cut, or truncate=True)", ["--cut"]),
        ("`make tests`, then `make demo`", ["make tests"]),
        ("mabert study pattern --scale tiny; mabert bench; mabert needs Python", []),
    ],
)
def test_what_is_not_there_would_be_seen(text, lost):
    assert list(not_there(text)) == lost


def test_the_commands_of_the_guides_can_be_typed_one_after_the_other():
    made, inputs = {}, 0
    for words in [each for name in ("pretrain", "classify", "commands") for each in commands(DOCS / f"{name}.md")]:
        options = cli.parse(words, COMMANDS)
        if str(model := getattr(options, "model", None)).startswith("runs/"):
            run, _, seed = model.partition("/seed-")
            inputs += 1
            assert run in made, f"{' '.join(words)}: nothing above makes {run}"
            assert not seed or int(seed) in made[run], f"{' '.join(words)}: no seed {seed} in {run}"
        output = getattr(options, "output", None)
        if output is None:
            continue
        if getattr(options, "resume", False):
            assert output in made, f"{' '.join(words)}: nothing above makes {output}"
        else:
            assert output not in made, f"{' '.join(words)}: {output} is there already"
            made[output] = getattr(options, "seeds", [])
    assert inputs > 5


@pytest.mark.slow
def test_a_page_can_be_made_of_all_results(tmp_path):
    assert all(file.is_file() for file in write_report(find([RESULTS]), tmp_path / "report.html")[:2])


def test_the_figures_of_the_page_are_there():
    figures = re.findall(r"\]\((report/\S+\.svg)\)", (RESULTS / "page/report.md").read_text(encoding="utf-8"))
    assert figures
    assert all((RESULTS / "page" / figure).is_file() for figure in figures)


@pytest.mark.slow
def test_the_guide_to_search_finds_what_was_asked_for(tmp_path, monkeypatch, capsys):
    pytest.importorskip("all_minilm_l6_v2", reason="all-MiniLM-L6-v2 is not installed")
    monkeypatch.chdir(tmp_path)
    texts = ["Bread needs flour.", "The visa office opens at nine.", "Our train leaves from platform two."]
    Path("texts.txt").write_text("\n".join(texts), encoding="utf-8")
    (program,) = programs("search")
    capsys.readouterr()
    known = {}
    exec(program, known)
    found = capsys.readouterr().out.splitlines()
    assert found[0] == f"1: {texts[1]}"
    known["find"]("C++")  # which has no word of two letters
    assert len(capsys.readouterr().out.splitlines()) == len(texts)
    assert sorted(found) == [f"{number}: {text}" for number, text in enumerate(texts)]
    for command in itertools.islice(commands(DOCS / "search.md"), 2):
        assert cli.main(command) == 0
    np.testing.assert_allclose(np.load("vectors.npy"), known["vectors"], atol=1e-6)
    assert np.load("parts.npy").shape == known["parts"].vectors.shape


@pytest.mark.slow
def test_the_guide_to_long_documents_sorts_by_words_and_vectors(capsys):
    (program,) = programs("long-documents")
    films = [f"{place} {kind} film{end}" for kind in ("fine", "dull") for place in "abcde" for end in (".", "!")]
    asked = "I saw a dull film."
    own = "texts, labels = [...], [...]  # your own"
    assert own in program
    program = program.replace('"minilm-4k"', '"minilm"').replace("A film that I shall not forget.", asked)
    exec(program.replace(own, ""), {"texts": films, "labels": ["fine" in film for film in films]})
    assert capsys.readouterr().out.splitlines()[-1] == "[False]"


@pytest.mark.slow
def test_the_smallest_example_of_the_leak(capsys):
    (program,) = (block for block in programs("padding") if "print(" in block)
    exec(program, {})
    none, papers, exact, unpadded = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines())
    assert none > 1e-2 > papers > 1e-5 > exact
    assert unpadded < 1e-5


def pinned():
    """The exact versions of what is installed before the table of clients is made."""
    files = ("../constraints.txt", "clients.txt", "clients-alone.txt")
    text = "\n".join((clients.TESTS / file).read_text(encoding="utf-8") for file in files)
    return dict(re.findall(r"^([\w.-]+)(?:\[\w+\])?==(\S+)$", text.replace("_", "-"), re.MULTILINE))


@pytest.mark.parametrize("client", clients.read(clients.ROWS), ids=lambda client: client.tool)
def test_the_tests_of_a_client_are_there(client):
    assert client.tests
    for test in client.tests:
        file, _, name = test.partition("::")
        text = (clients.TESTS / file).read_text(encoding="utf-8")
        assert f"def {name.partition('[')[0] or 'test_'}" in text, test


def test_the_table_of_clients_is_that_of_its_data():
    text = clients.PAGE.read_text(encoding="utf-8").split(clients.BEGIN)[1].split(clients.END)[0]
    head, _, *shown = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    rows, versions = clients.read(clients.ROWS), pinned()
    assert head == list(clients.HEAD)
    expected = [[each.tool, f"{each.package} {versions[each.package]}", each.works, each.limits] for each in rows]
    assert [cells[:4] for cells in shown] == expected
    for client, cells in zip(rows, shown, strict=True):
        files = dict.fromkeys(test.partition("::")[0] for test in client.tests)
        assert re.findall(r"`(\S+)`: [1-9]\d* passed", cells[4]) == list(files)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "refused"),
    [
        ("def test_it(): pass", ""),
        ("def test_it(): assert not 1", "failed"),
        ("import pytest\n@pytest.mark.skip\ndef test_it(): pass", "was skipped"),
        ("def test_other(): pass", "is not there"),
        (None, "is not there"),
    ],
)
def test_a_client_is_shown_only_if_its_tests_passed(tmp_path, capfd, program, refused):
    page, rows = tmp_path / "page.md", tmp_path / "rows.yaml"
    before = f"above\n{clients.BEGIN}\nold\n{clients.END}\nbelow\n"
    page.write_text(before, encoding="utf-8")
    rows.write_text("[{tool: A tool, package: pytest, works: all, tests: ['test_one.py::test_it']}]", encoding="utf-8")
    if program:
        (tmp_path / "test_one.py").write_text(program, encoding="utf-8")
    assert clients.main(rows, page, tmp_path) == bool(refused)
    text = page.read_text(encoding="utf-8")
    if refused:
        assert text == before
        assert capfd.readouterr().err == f"A tool: test_one.py::test_it {refused}; page.md stays as it was\n"
    else:
        assert text.startswith(f"above\n{clients.BEGIN}\n")
        assert f"| A tool | pytest {pytest.__version__} | all | - | `test_one.py`: 1 passed |" in text
        assert text.endswith(f"{clients.END}\nbelow\n")
        assert "old" not in text
