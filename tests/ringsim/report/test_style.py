"""The style of pictures: their colours, as the colour-blind see them, and the settings of matplotlib.

Machado, Oliveira and Fernandes 2009, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (IEEE
TVCG 15(6), doi 10.1109/TVCG.2009.113): matrices on linear RGB, severity 1.0. Distances are CIELAB's of 1976.
"""

from collections import defaultdict
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pytest
from matplotlib.colors import to_rgb

from ringsim import Collective, Network, RunView, plot, ring_all_reduce, run_sweep
from ringsim.network import read_network
from ringsim.registry import ALGORITHMS
from ringsim.report.colours import Style, ink_on, lightness, mixed
from ringsim.report.plots import save_plot
from ringsim.report.plots.style import drawing, new_figure, palette, save_figure
from tests.ringsim.report.pages.headless_chromium import Browser, needs_chromium

Vector = npt.NDArray[np.float64]

VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
RGB_TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                       [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip
WHITE_POINT = np.array([0.95047, 1.0, 1.08883])  # D65
APART = 20.0  # two patches side by side differ visibly from about 2.3 on; a thin line and its legend need much more
OWN = [f"mine.py:{letter}" for letter in "abc"]


def linear(colour: str) -> Vector:
    """Linear RGB of a colour in sRGB."""
    value = np.array(to_rgb(colour))
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(colour: str, vision: str) -> Vector:
    """CIELAB of a colour as it is seen."""
    xyz = RGB_TO_XYZ @ np.clip(VISIONS[vision] @ linear(colour), 0, 1) / WHITE_POINT
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one: str, other: str, vision: str) -> float:
    """How far apart two colours look."""
    return float(np.linalg.norm(lab(one, vision) - lab(other, vision)))


def all_styles() -> dict[str, Style]:
    """Of the built-in algorithms, NCCL's choice and three of a user's own."""
    return palette().styles_of([*dict.fromkeys(name for _, name in ALGORITHMS), "nccl", *OWN])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_styles_that_share_a_texture_differ_in_colour(theme: str, vision: str) -> None:
    """For everybody; those of other textures may look alike, as lines have other strokes and areas other hatches.

    So do, in the lanes, sendings to add and to overwrite, reductions, what is slow or hangs, and the paper.
    """
    with drawing(theme):
        by_texture, hues = defaultdict(list), palette()
        for style in all_styles().values():
            by_texture[style.texture].append(style.colour)
    for colours in by_texture.values():
        assert min(distance(*pair, vision) for pair in combinations([*colours, hues.paper], 2)) > APART
    kinds = (hues.blue, hues.sky, hues.orange, hues.vermillion, hues.paper, hues.ink)
    assert min(distance(*pair, vision) for pair in combinations(kinds, 2)) > 15


def test_what_is_written_on_a_colour_can_be_read() -> None:
    """In black or white, whichever is further away; on paper in ink."""
    for theme in ("light", "dark"):
        with drawing(theme):
            for style in all_styles().values():
                assert abs(lightness(style.colour) - lightness(style.ink)) > 0.4
            assert abs(lightness(palette().dark_grey) - lightness(palette().paper)) > 0.4
    assert (ink_on("#FFFF00"), ink_on("#000080")) == ("#000000", "#FFFFFF")
    assert mixed("#000000", "#FFFFFF", 0.5) == "#808080"


def test_series_are_all_different() -> None:
    """No two of the first hundred have colour, stroke and marker in common, and the first few differ in colour."""
    series = [palette().series_style(number) for number in range(100)]
    assert len(set(series)) == 100
    assert len({style.colour for style, _ in series[:18]}) == 18


NETWORK = Network.uniform(latency_s=1e-5, bandwidth_bytes_per_s=1e9)


def test_settings_are_as_before_afterwards() -> None:
    """Also after an error."""
    before = dict(mpl.rcParams)
    plot(ring_all_reduce(2), style="dark")
    with pytest.raises(ValueError, match="^'no such' is not a style: give light, dark, a file of matplotlib settings"):
        plot(ring_all_reduce(2), style="no such")
    assert dict(mpl.rcParams) == before


def test_a_file_that_is_no_style_is_refused(tmp_path: Path) -> None:
    """In one line, which names it."""
    path = tmp_path / "mine.mplstyle"
    path.write_text("figure.facecolor: no colour\n")
    with drawing(str(path)):  # matplotlib warns of what it does not understand, and goes on
        assert palette().paper == "#FFFFFF"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="^[^\n]*mine.mplstyle' is not a style [(].*[)]: give light[^\n]*$"):
        plot(ring_all_reduce(2), style=str(path))


def test_the_users_settings_are_kept() -> None:
    """A larger font makes a larger page, on which nothing is squeezed; colours and resolution are the user's."""
    plain = plot(ring_all_reduce(3))
    with mpl.rc_context({"font.size": 15, "figure.dpi": 50, "text.color": "#112233", "font.family": "serif"}):
        figure = plot(ring_all_reduce(3))
        title = figure.findobj(lambda artist: "all_reduce" in getattr(artist, "get_text", str)())[0]
    assert figure.get_size_inches().tolist() == (1.5 * plain.get_size_inches()).tolist()
    assert figure.dpi == 50
    assert (title.get_fontsize(), title.get_color(), title.get_fontfamily()) == (22.5, "#112233", ["serif"])
    assert plain.dpi == 144


def test_a_style_of_matplotlib_s_has_its_paper_and_ink() -> None:
    """The hues follow: those for dark paper are lighter."""
    with drawing("dark_background"):
        assert (palette().paper, palette().ink, palette().is_dark) == ("#000000", "#FFFFFF", True)


@needs_chromium
def test_a_browser_keeps_the_indentation_of_text_in_svg(browser: Browser, tmp_path: Path) -> None:
    """Code in a picture stays code; browsers drop spaces otherwise."""
    figure, path = new_figure(3, 2), tmp_path / "code.SVG"
    figure.text(0.1, 0.5, "for rank in ranks:\n    send(rank,  chunk)")
    save_figure(lambda: figure, path)
    counted = "document.title = [...document.querySelectorAll('text')].map((text) => text.getNumberOfChars());"
    page = path.rename(tmp_path / "page.html")
    page.write_text(f"<!DOCTYPE html>{page.read_text().partition('?>')[2]}<script>{counted}</script>")
    assert "<title>18,22</title>" in browser.document(page)


def test_svg_has_text(tmp_path: Path) -> None:
    """Titles and what stands in the grid can be searched for; a dollar in a name of the user's is no formula."""
    named = 'name = "$x_1$ and $y"\ndescription = "costs $5 and $6^"\n[host]\nranks = 1\nnic.bandwidth = "1GB/s"\n'
    network = read_network(named, "test.toml")
    sweep = run_sweep(Collective.ALL_REDUCE, ["ring"], [2, 4], [8, 1024], {"$a^$b": network})
    save_plot(sweep, tmp_path / "sweep.svg")
    assert "Fastest on network $a^$b" in (tmp_path / "sweep.svg").read_text()
    save_plot(RunView(ring_all_reduce(4), network, 1 << 20), tmp_path / "page.svg")
    page = (tmp_path / "page.svg").read_text()
    for text in ("4 ranks", "reduce-scatter", "c0 → r2", ">3</text>", "network $x_1$ and $y", "costs $5 and $6^"):
        assert text in page, text
