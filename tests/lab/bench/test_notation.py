"""Numbers have as many digits as tables show."""

import pytest

from mabert_lab.bench.notation import digits


@pytest.mark.parametrize(
    ("least", "said"), [(3, ["0.0123", "5.22", "12.3", "98,765"]), (4, ["0.01235", "5.220", "12.35", "98,765"])]
)
def test_numbers_have_digits_enough_and_all_before_the_point(least, said):
    assert [digits(number, least) for number in (0.012345, 5.2199, 12.346, 98765.4)] == said
