"""Shares as people write them: 10%, 0.1."""


def parse_share(text: str) -> float:
    """A share, 1 being the whole. Raises ValueError for anything else, or a negative one."""
    digits = text.strip().removesuffix("%")
    try:
        value = float(digits) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise ValueError(f"{text!r} is not a share: write it as 10% or 0.1") from None
    if not 0 <= value < float("inf"):  # nor what is no number
        raise ValueError(f"{text!r}: a share must not be negative")
    return value
