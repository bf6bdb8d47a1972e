"""Numbers have as many digits as tables show."""

from mabert_lab.bench.notation import digits


def test_numbers_have_digits_enough_and_all_before_the_point():
    assert [digits(number) for number in (0.00123, 1.234, 12.34, 1234.5)] == ["0.00123", "1.23", "12.3", "1,234"]
    assert [digits(number, 4) for number in (0.012345, 5.2199, 98765.4)] == ["0.01235", "5.220", "98,765"]
