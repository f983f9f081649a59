"""Tests of `ringsim.report.plots.style`: pictures follow matplotlib's settings, and leave them alone."""

from pathlib import Path

import matplotlib as mpl
import pytest

from ringsim import Collective, Network, RunView, plot, ring_all_reduce, run_sweep
from ringsim.network.file_reader import read_network
from ringsim.report.plots import save_plot
from ringsim.report.plots.style import drawing, new_figure, palette, save_figure
from tests.ringsim.report.pages.headless_chromium import Browser, needs_chromium

NETWORK = Network(latency_s=1e-5, bandwidth_bytes_per_s=1e9)


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
