"""`align_columns`: the rows of a table as lines of text, for all tables that this project prints."""

from collections.abc import Sequence

GAP = "  "  # between two columns


def align_columns(rows: Sequence[Sequence[str]], alignment: str = "l", gap: str = GAP) -> list[str]:
    """Returns a line for each row, in which every column is as wide as its longest cell.

    rows: all of one length. alignment: a letter for each column, l for left or r for right; the last letter holds for
    all columns that follow. Blanks at the end of a line are removed.

    >>> align_columns([("size", "ranks"), ("64 KiB", "2")], "lr")
    ['size    ranks', '64 KiB      2']
    """
    columns = list(zip(*rows, strict=True))
    letters = alignment + alignment[-1] * (len(columns) - len(alignment))
    padded = []
    for column, letter in zip(columns, letters, strict=True):
        width = max(map(len, column))
        padded.append([cell.ljust(width) if letter == "l" else cell.rjust(width) for cell in column])
    return [gap.join(line).rstrip() for line in zip(*padded, strict=True)]
