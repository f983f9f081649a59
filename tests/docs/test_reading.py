"""How the blocks of a page are read."""

from tests.docs.pages import as_pattern, words_of


def test_three_dots_stand_for_any_lines() -> None:
    """For none, one or several; at the end of a line for the rest of it."""
    pattern = as_pattern("first\n...\nlast\n")
    for printed in ("first\nlast\n", "first\nx\nlast\n", "first\nx\n\nlast\n"):
        assert pattern.fullmatch(printed)
    assert not pattern.fullmatch("first\nlast\nmore\n")
    assert as_pattern("first ...\nlast\n").fullmatch("first and more\nlast\n")
    assert not as_pattern("first ...\nlast\n").fullmatch("first and\nmore\nlast\n")
    assert as_pattern("a.c\n").fullmatch("a.c\n")
    assert not as_pattern("a.c\n").fullmatch("abc\n")


def test_of_what_was_measured_the_words_count() -> None:
    """Units of two letters, which change with the size of a number, do not."""
    assert words_of("ring  12.3 ms  busbw 1 GB/s") == ["ring", "busbw"]
