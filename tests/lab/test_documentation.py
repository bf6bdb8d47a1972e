from __future__ import annotations

import gc
import os
import sysconfig

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mabert_lab.demo.documentation import installed_documentation, prose
from mabert_lab.english import is_prose, split_sentences

NUMPY_STYLE = """
    Return the product of the elements over an axis.

    The product is taken in `double` precision for :class:`~numpy.ndarray` inputs [1]_ and **only** there.
    A second sentence of this paragraph mentions code_names and is left out. The third one stays as it is.

    Parameters
    ----------
    axis : int, optional
        The axis that is used.
    where : array_like
        The elements that are included in the product. Those left out count as one.

    Returns
    -------
    product : ndarray
        The result of it all.

    Notes
    -----
    Empty products are one, as is usual in mathematics.

    .. math:: x = 1

    Examples
    --------
    >>> prod([1, 2])
    2

    - This is the first item of a list that
      goes on here.
    - This is the second item of it.

    Use it like this::

        The code is here and it is indented code.
    """
TOPICS = """topics = {
    'assert': 'The "assert" statement\\n***\\n\\nAssert statements are a convenient way to put checks into a program '
        'while it is being written and one is not yet sure.\\n\\n   assert_stmt ::= "assert"\\n',
    'short': 'Too short to be kept.',
}
"""


def module(text, code="raise RuntimeError('this must not run')"):
    return f'"""{text}"""\n{code}\n'


def about(part):
    return (
        f"The {part} of the kettle is cleaned with water before it is put on the stove again. "
        f"Then the {part} is left there until all of the water in it boils."
    )


def test_paragraphs_of_a_doc_string():
    assert list(prose(NUMPY_STYLE)) == [
        ["Return the product of the elements over an axis."],
        [
            "The product is taken in double precision for ndarray inputs and only there.",
            "The third one stays as it is.",
        ],
        ["Those left out count as one."],
        ["This is the first item of a list that goes on here.", "This is the second item of it."],
    ]


@given(st.text("Aa. \n>-:`*[]()\"'_=the", max_size=200))
def test_whatever_comes_out_is_prose_on_one_line(text):
    for paragraph in prose(text):
        assert paragraph
        for sentence in paragraph:
            assert is_prose(sentence)
            assert "\n" not in sentence


@pytest.mark.parametrize(
    "text",
    [
        "This is a sentence of plain words.",
        "Some things, e.g. stones, are left where they are.",
        'The word "stone" is used for it.',
        "What is to be done with it?",
    ],
)
def test_prose_is_recognised(text):
    assert is_prose(text)


@pytest.mark.parametrize(
    "text",
    [
        "this has no capital at the beginning of it.",
        "This has no full stop at the end of it",
        "Parameters, results, examples, notes, references.",
        "It is of four.",
        "The value of x = 5 is the one to use.",
        "This is in the module os.path of the library.",
        "See https://example.org for the rest of it.",
        "The function f(x) is the one to use.",
        "This has a bracket (that is not closed.",
        "Das ist ein Satz in einer anderen Sprache.",
        "This is a na\u00efve way to go about it.",
    ],
)
def test_other_things_are_not(text):
    assert not is_prose(text)


def test_abbreviations_and_initials_end_no_sentence():
    text = 'It is by J. Smith et al. The rest, e.g. Fig. 3, is not. (It never was.) "Is it?" Yes! No.'
    assert split_sentences(text) == [
        "It is by J. Smith et al. The rest, e.g. Fig. 3, is not.",
        "(It never was.)",
        '"Is it?"',
        "Yes!",
        "No.",
    ]
    assert "".join(split_sentences("")) == ""


NESTED = '''
class A:
    """{}"""
    def f(self):
        """{}"""
        def g():
            """This is inside of a function, where it is left alone."""
'''


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_a_document_a_module_in_the_order_of_the_paths(tmp_path, capfd):
    write(
        tmp_path,
        {
            "b.py": module(about("lid")),
            "a/z.py": module(about("spout"), NESTED.format(about("handle"), about("base"))),
            "a/escape.py": module(about("steam"), "x = '\\d'"),
            "pydoc_data/topics.py": TOPICS,
        },
    )
    statement = (
        "Assert statements are a convenient way to put checks into a program while it is being written "
        "and one is not yet sure."
    )
    expected = [about("lid"), about("steam"), "\n".join(map(about, ("spout", "handle", "base"))), statement]
    assert installed_documentation([tmp_path]) == expected
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "documentation" in shown.err
    assert installed_documentation([tmp_path, tmp_path], progress=False) == expected


def test_what_is_left_out(tmp_path):
    write(
        tmp_path,
        {
            "a.py": module(about("lid")),
            "copy.py": module(about("lid") + "\n\n" + "This is new, but it is short."),
            "test/t.py": module(about("test")),
            "_vendor/v.py": module(about("vendor")),
            "broken.py": module(about("crack"), "def ("),
            "code.py": module(about("code"), "x = 1\n" * 500),
            "data.txt": about("text"),
        },
    )
    assert installed_documentation([tmp_path], progress=False) == [about("lid")]
    assert gc.isenabled()
    (tmp_path / "bare").mkdir()
    with pytest.raises(ValueError, match=r"no documentation found in .*bare"):
        installed_documentation([tmp_path / "bare"], progress=False)


def test_files_that_cannot_be_read_are_left_out(tmp_path, monkeypatch):
    write(tmp_path, {"a.py": module(about("lid")), "closed.py": module(about("spout"))})
    (tmp_path / "lost.py").symlink_to(tmp_path / "nowhere.py")
    os.mkfifo(tmp_path / "pipe.py")
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / "closed.py")
    assert installed_documentation([tmp_path], progress=False) == [about("lid")]


def test_the_standard_library_has_plenty():
    documents = installed_documentation([sysconfig.get_path("stdlib")], progress=False)
    text = "\n".join(documents)
    assert len(documents) > 100
    assert len(text) > 150_000
    assert all(sum(map(is_prose, split_sentences(line))) for line in text.split("\n"))
    assert ">>>" not in text
