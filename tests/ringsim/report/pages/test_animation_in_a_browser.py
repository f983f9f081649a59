"""The page of an animation, run by a browser without a window: what its program makes of the data."""

import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from ringsim import Collective, RunView, animation_page, load_network
from ringsim.registry import ALGORITHMS
from tests.ringsim.made_networks import DEAD_LINK, SLOW_LINK, made_network, network_of_nics
from tests.ringsim.made_run import made_view
from tests.ringsim.report.pages.headless_chromium import Browser, needs_chromium

pytestmark = needs_chromium

Show = Callable[..., str]


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Show:
    """Returns what a browser makes of a page: its elements as text."""

    def dump(animations: list[RunView], moment: str = "", then: str = "") -> str:
        """moment: what follows the address. then: a program that runs after the page's own."""
        path = tmp_path / "page.html"
        path.write_text(animation_page(animations).replace("</body>", f"<script>{then}</script></body>"))
        document = browser.document(path, moment)
        assert "data-error" not in document, re.findall(r'data-error="[^"]*"', document)
        assert "data-tick" in document
        return document

    return dump


def answer(show: Show, views: list[RunView], program: str, moment: str = "") -> tuple[Any, str]:
    """Return the value of an expression, after the page's program has run, and the page."""
    dom = show(views, moment, f"document.title = JSON.stringify({program});")
    return json.loads(html.unescape(dom.partition("<title>")[2].partition("</title>")[0])), dom


def texts(dom: str, css_class: str) -> list[str]:
    """Return the texts of the elements of a class."""
    return [html.unescape(text) for text in re.findall(rf'<\w+ class="{css_class}[^"]*"[^>]*>([^<]*)<', dom)]


@pytest.mark.parametrize("moment", ["", "#step=2", "#step=3&chunk=0", "#step=4", "#t=1"])
def test_an_address_leads_to_a_moment(show: Show, moment: str, snapshot: SnapshotAssertion) -> None:
    """The end of a step: the sentence is that of the step, and all of its transfers are applied, in words as well."""
    dom = show([made_view("ring", 4)], moment)
    shown = [text for css_class in ("phase", "sentence", "applied") for text in texts(dom, css_class)]
    assert "\n".join(shown) == snapshot


HELD = "(({ held, action, own, needed }) => [held, action, own.map(countBits), needed])(player.sections[0].run)"


def test_the_counts_of_a_ring(show: Show) -> None:
    """Each contribution is added once: 2, 3, then all 4; all that follows is a copy of what is complete."""
    held, action, own, needed = answer(show, [made_view("ring", 4)], HELD)[0]
    assert held == [count for count in (2, 3, 4, 4, 4, 4) for _ in range(4)]
    assert action == [0] * 12 + [2] * 12
    assert (own, needed) == ([1] * 16, 4)


def test_a_timeline_in_another_order_means_the_same(show: Show) -> None:
    """A record lists the transfers of a step by their senders."""
    plain = made_view("halving_doubling", 8)
    timeline, mean = plain.timeline, []
    order = np.lexsort((timeline.chunk, timeline.dst, timeline.src, timeline.step))[::-1]
    for rows in (np.arange(len(order)), order[np.argsort(timeline.step[order], kind="stable")]):
        columns = {name: getattr(timeline, name)[rows] for name in timeline.columns()}
        view = RunView(plain.schedule, plain.network, 2**20, timeline=replace(timeline, **columns))
        held = answer(show, [view], HELD)[0][0]
        transfers = [columns[name].tolist() for name in ("step", "src", "dst", "chunk")]
        mean.append(sorted(zip(*transfers, held, strict=True)))
    assert mean[0] == mean[1]


def driven(show: Show, views: list[RunView], program: str) -> Any:
    """Return what a function of drive_animation.js leaves in its log."""
    driver = Path(__file__).with_name("drive_animation.js").read_text()
    return answer(show, views, f"(() => {{ {driver}{program}(); return log; }})()")[0]


@pytest.mark.parametrize("runs", [("ring",), ("ring", "slow link"), ("naive_ring", "ring"), ("binomial_tree",)])
def test_a_step_moves_to_its_end_where_all_views_show_the_same_moment(show: Show, runs: tuple[str, ...]) -> None:
    """Also where fast ranks have begun the next step by then, and of two runs on one axis of time."""
    network = [made_network(SLOW_LINK)] if runs[-1] == "slow link" else []
    views = [made_view(name, 4, *network) for name in runs if name != "slow link"]
    log = driven(show, views, "stepThrough")
    ends = [(step, boxes, set(words), is_moving) for is_moving, ((step, boxes, words), *_) in log[1::2]]
    assert ends == [(step, [], {"applied"}, False) for step in range(1, views[0].schedule.num_steps + 1)]
    assert any(is_moving and boxes for is_moving, ((_, boxes, _), *_) in log[::2])
    for step, boxes, words in (view for _, shown in log for view in shown):
        assert boxes == [step] * words.count("moving")


def test_keys_step_jump_and_play(show: Show) -> None:
    """A second press jumps to the end of the step under way, a key to the left goes back, Space plays and pauses.

    For readers who want no motion a step jumps to its end at once, and playing shows one step after another.
    """
    ends, *log = driven(show, [made_view("ring", 4)], "pressKeys")
    ticks, buttons = zip(*log, strict=True)
    assert [*ticks[1:2], *ticks[3:7], *ticks[9:]] == [ends[0], ends[0], 1e6, ends[4], 0, *ends[:3]]
    assert 0 < ticks[0] < ends[0] < ticks[2] < ends[1]
    assert 0 < ticks[7] == ticks[8] < ends[0]
    assert buttons == (*("Pause", "Play") * 2, "Play", "Play", "Play", "Pause", "Play", "Play", "Pause", "Pause")


DOING = "[...Array(player.sections[0].run.numRanks).keys()].map((r) => player.sections[0].run.activity(r, player.tick))"


def test_a_run_that_never_finishes_says_who_hangs(show: Show) -> None:
    """And who waits for whom; what never happens is marked."""
    doing, dom = answer(show, [made_view("ring", 4, made_network(DEAD_LINK))], DOING, "#t=1")
    assert [tuple(rank.values()) for rank in doing[2:]] == [("sends", 3, True), ("waits", 2, True)]
    assert "This run never finishes." in dom
    assert "host2.nic0.out failed at 300 us" in dom
    assert re.search(r"rank 2 was last active at [\d.]+ \w+ and sends to rank 3 without end", dom)
    assert any("rank 3" in text and "from rank 2" in text for text in texts(dom, "never"))


def test_a_slow_link_holds_the_others_back(show: Show) -> None:
    """Half-way through, one rank sends and most of the others wait for the one before them."""
    doing, _ = answer(show, [made_view("ring", 8, made_network(SLOW_LINK))], DOING, "#t=0.5")
    assert [(doing[rank]["doing"], doing[rank]["peer"]) for rank in (2, 3)] == [("sends", 3), ("waits", 2)]
    assert sum(rank["doing"] == "waits" for rank in doing) >= 4


@pytest.mark.parametrize(("algorithm", "num_labels"), [("direct", 6), ("ring", 3)])
def test_labels_of_slow_links_do_not_overlap(show: Show, algorithm: str, num_labels: int) -> None:
    """Neither one another nor a rank; and there are some, at most eight."""
    program = """(({ labels, place, radius }) => {
        const ranks = place.map(([x, y]) => boxAround(x, y, 2 * radius, 2 * radius));
        const hits = labels.filter((label) => [...labels, ...ranks].some((o) => o !== label && overlap(label, o)));
        return [labels.length, hits.length];
    })(player.sections[0].graph)"""
    views = [made_view(algorithm, 6, network_of_nics(10, 1, 2, 10, 10, 10))]
    (shown, hidden), _ = answer(show, views, program, "#t=0.3")
    assert (hidden, num_labels <= shown <= 8) == (0, True)


def test_no_chunk_hides_the_number_of_a_rank(show: Show) -> None:
    """All ranks are drawn after the chunks; two hosts of eight ranks are close to one another."""
    program = """(() => {
        const drawn = [];
        for (const name of ['drawChunk', 'drawRank']) {
            const draw = GraphView.prototype[name];
            GraphView.prototype[name] = function (...given) { drawn.push(name); return draw.apply(this, given); };
        }
        player.sections[0].graph.draw(TICKS * 0.3, null, themeColours());
        return [drawn.lastIndexOf('drawChunk') < drawn.indexOf('drawRank'), drawn.length > 16];
    })()"""
    assert answer(show, [made_view("ring", 16, load_network("dgx-a100"))], program, "#t=0.3")[0] == [True, True]


@pytest.mark.parametrize(("algorithm", "most", "has_dots"), [("direct", 8 * 7, True), ("ring", 8, False)])
def test_the_key_tells_of_dots_if_many_messages_travel(show: Show, algorithm: str, most: int, has_dots: bool) -> None:
    """Of 8 ranks each sends to all others at once, or to its neighbour."""
    num_messages, dom = answer(show, [made_view(algorithm, 8)], "mostInTransit(player.sections[0].run)", "#t=0.3")
    assert (num_messages, "a dot is a chunk in transit" in dom) == (most, has_dots)


def test_two_runs_side_by_side(show: Show) -> None:
    """On one axis of time: when the first is done the other is still at it; at the end the page names the faster."""
    runs = [made_view("ring", 4), made_view("binomial_tree", 4)]
    dom = show(runs, "#t=0.6")
    assert (len(texts(dom, "phase")), dom.count("<canvas")) == (2, 6)
    assert ["Done after" in text for text in texts(dom, "sentence")] == [True, False]
    faster, slower = texts(show(runs, "#t=1"), "sentence")
    assert re.search(r"takes .* times as long\.$", faster)
    assert "times as long" not in slower


@pytest.mark.parametrize("collective", Collective)
def test_every_algorithm_draws(show: Show, collective: Collective) -> None:
    """The page counts the shares anew and fails if it counts others."""
    names = [name for other, name in ALGORITHMS if other is collective]
    views = [made_view(name, 5, collective=collective, size_bytes=2**10) for name in names]
    for first in range(0, len(names), 2):
        show(views[first : first + 2], "#t=0.5")


def test_hosts_and_64_ranks_draw(show: Show) -> None:
    """Also in the dark; and one rank, which has nothing to send."""
    show([made_view("ring", 1)], "#t=0.4")
    for algorithm, num_ranks in (("hierarchical", 32), ("nvls", 8)):
        show([made_view(algorithm, num_ranks, load_network("dgx-h100-cluster"))], "#t=0.5&theme=dark")
    assert "and 56 more" in show([made_view("ring", 64)], "#step=71")
