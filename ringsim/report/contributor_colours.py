"""`contributor_colours`: a colour for each rank's share, in pictures that move."""

# Told apart by the colour-blind (after Okabe and Ito), readable on white and on black; vermillion is left to faults.
_FEW = ("#3b82c4", "#e69f00", "#1a9e77", "#c76aa5", "#62c3ee", "#d8c820", "#9a6a44", "#8a8a8a")
# For more ranks than that a scale from purple to yellow (viridis), in which neighbours look alike.
_SCALE = ((86, 48, 140), (62, 90, 150), (42, 125, 142), (36, 160, 135), (90, 195, 100), (170, 215, 60), (245, 228, 60))


def contributor_colours(num_ranks: int) -> list[str]:
    """Return one for each rank, as #rrggbb.

    >>> contributor_colours(2)
    ['#3b82c4', '#e69f00']
    """
    if num_ranks <= len(_FEW):
        return list(_FEW[:num_ranks])
    return [_on_scale(rank / (num_ranks - 1)) for rank in range(num_ranks)]


def _on_scale(place: float) -> str:
    below = min(int(place * (len(_SCALE) - 1)), len(_SCALE) - 2)
    share = place * (len(_SCALE) - 1) - below
    mixed = (round(low + share * (high - low)) for low, high in zip(_SCALE[below], _SCALE[below + 1], strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)
