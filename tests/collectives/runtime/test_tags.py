"""The tags of messages: what they are made of does not overlap."""

from collectives.runtime.preposted import MAX_EAGER_BYTES, eager_tag
from collectives.runtime.tags import (
    FINGERPRINT_SHIFT,
    SIZE_CLASS_SHIFT,
    SIZE_CLASSES,
    STAMPED,
    Tag,
    digest_tag,
    numbered_tag,
)


def test_each_purpose_has_a_tag_of_its_own() -> None:
    """Of one byte, and not that of a program's own messages."""
    assert len({int(tag) for tag in Tag}) == len(Tag)
    assert all(0 < tag < 1 << SIZE_CLASS_SHIFT for tag in Tag)


def test_purpose_size_class_and_number_can_be_told_from_a_tag() -> None:
    """For every purpose, the largest size class, and a large number."""
    for purpose in Tag:
        tag = eager_tag(numbered_tag(purpose, 4095), MAX_EAGER_BYTES)
        assert tag & (1 << SIZE_CLASS_SHIFT) - 1 == purpose
        assert 0 < tag >> SIZE_CLASS_SHIFT & SIZE_CLASSES < SIZE_CLASSES
        assert tag >> FINGERPRINT_SHIFT == 4095


def test_as_much_of_a_digest_as_fits() -> None:
    """In a tag of 31 bits, in the place of the number; purpose and size class stay, and calls that differ by one do."""
    tag = numbered_tag(Tag.COLLECTIVE, 4095, stamped=True)
    first, second = (digest_tag(tag, 2**61 + last) for last in (0, 1))
    assert max(tag, first, second, digest_tag(tag, 2**62 - 1)) < 2**31
    assert first != second
    for each in first, second:
        assert each & STAMPED
        assert each & (1 << FINGERPRINT_SHIFT) - 1 == Tag.COLLECTIVE
