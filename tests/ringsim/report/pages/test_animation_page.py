"""The page of an animation: its data, read without a browser."""

import json
import re
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from ringsim import animation_page, load_network
from ringsim.report.colours import contributor_colours
from ringsim.report.pages import page
from tests.ringsim.made_networks import DEAD_LINK, SLOW_LINK, SLOW_RANK, made_network, network_of_nics
from tests.ringsim.made_run import made_view

MEGABYTE = 10**6


def page_of(*run: Any, **more: Any) -> str:
    """The page of one run, see `made_view`."""
    return animation_page([made_view(*run, **more)])


def data_of(text: str) -> dict[str, Any]:
    """Return the data that the page's program finds."""
    line = next(line for line in text.splitlines() if line.startswith("const pageData = "))
    data: dict[str, Any] = json.loads(line.removeprefix("const pageData = ").removesuffix(";"))
    return data


def test_a_ring_of_64_ranks_is_less_than_a_megabyte() -> None:
    """On a network where all are alike, and on one where hosts share NICs."""
    assert len(page_of("ring", 64).encode()) < MEGABYTE
    assert len(page_of("ring", 64, load_network("dgx-h100-cluster"), size_bytes=2**26).encode()) < MEGABYTE


def test_the_times_are_those_of_the_timeline() -> None:
    """To a millionth of the whole, as differences from one to the next."""
    animation = made_view("torus", 6)
    data = data_of(animation_page([animation]))
    (run,) = data["runs"]
    tick_s = (data["lastS"] - data["firstS"]) / 1e6
    sums = run["times"]["start"]
    for name in ("start", "left", "arrived", "apply", "applied"):
        sums = sums if name == "start" else [a + b for a, b in zip(sums, run["times"][name], strict=True)]
        expected = getattr(animation.timeline, "sent_s" if name == "left" else f"{name}_s")
        assert [tick * tick_s for tick in sums] == pytest.approx(expected.tolist(), abs=tick_s)
    assert run["firstRow"][-1] == len(animation.timeline)


def test_a_run_that_never_finishes_has_no_infinity() -> None:
    """JSON has none: what never happens is null, and who hangs is said."""
    run = data_of(page_of("ring", 4, made_network(DEAD_LINK)))["runs"][0]
    assert None in run["times"]["applied"]
    assert run["time"] == "never finishes"
    assert [2, "sends", 3] in run["stuck"]
    assert any("rank 3 was last active" in line for line in run["stalled"])


def test_troubles_are_told_in_words(snapshot: SnapshotAssertion) -> None:
    """Above the picture; nothing where there are none."""
    pages = (
        page_of("ring", 4, made_network(f"{SLOW_LINK}\n{SLOW_RANK}"), size_bytes=2**26),
        page_of("ring", 4, made_network(DEAD_LINK)),
        page_of("direct", 4, made_network("[[failure]]\nrank = 1\nat = '300us'")),
        page_of("ring", 4, network_of_nics(10, 10, 1, 10), size_bytes=2**26),
        page_of("direct", 12, network_of_nics(*[10] * 7, 1, 2, 3, 4, 5)),
        page_of("ring", 4),
    )
    assert "\n".join(" ".join(re.findall("<p class='wrong'>(.*?)</p>", text)) for text in pages) == snapshot


def test_two_runs_share_one_axis() -> None:
    """The axis of two runs is that of the longer one; three runs have no room."""
    runs = [made_view(name, 4) for name in ("ring", "binomial_tree")]
    data = data_of(animation_page(runs))
    assert [run["name"] for run in data["runs"]] == ["ring", "binomial_tree"]
    assert data["lastS"] == max(run.timeline.time_s for run in runs)
    with pytest.raises(ValueError, match="3 runs: a page shows 1 or 2"):
        animation_page([*runs, runs[0]])


def test_a_name_is_text() -> None:
    """The name of a user's network or algorithm does not become markup; no address of another file or host is there."""
    animation = made_view("ring", 2, size_bytes=100, name="</script><b>")
    text = animation_page([animation, animation])
    assert not any(word in text for word in ("<b>", "http:", "https:", "src=", "@import", "url(", "import("))


def test_what_is_given_to_a_page_stays_data() -> None:
    """A name that looks like HTML keeps its value and does not become markup; the policy forbids other addresses."""
    name = "</script><script>alert(1)</script>\u2028"
    text = page("page.j2", "<b>&{{ x }}", data={"name": name})
    assert "default-src 'none'" in text
    assert text.count("<script>") == 2
    assert data_of(text) == {"name": name}
    assert "<title>&lt;b&gt;&amp;{{ x }}</title>" in text


def test_colours_differ() -> None:
    """For few ranks and for many."""
    for num_ranks in (1, 8, 9, 64, 128):
        assert len(set(contributor_colours(num_ranks))) == num_ranks
