"""Orders of ranks: against all orders where there are few, and where one sees what is best."""

import json
from collections.abc import Callable, Iterable
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pytest

from ringsim import Collective, Network, load_network, permute_ranks, predict_time
from ringsim.analysis.rank_placement import default_budget, find_placement
from ringsim.libraries import OURS
from ringsim.network import read_network
from ringsim.network.spec import Failure
from ringsim.registry import build
from ringsim.report.network_table import format_placement, parse_placement, placement_dict
from tests.ringsim.commands import as_json, printed, run, written
from tests.ringsim.made_networks import network_of_nics

SIZE = 2**22
EXAMPLE = Path(__file__).parents[3] / "docs/networks/interleaved.toml"


def network_of(pairs: Iterable[tuple[int, int]], num_ranks: int, of_pair: Callable[[], tuple[int, int]]) -> Network:
    """One rank a host, and cables between these pairs: microseconds and Gbit/s of each."""
    hosts = [f'[[hosts]]\nname = "h{rank}"\nranks = [{rank}]' for rank in range(num_ranks)]
    links = [
        '[[links]]\nbetween = ["h{}", "h{}"]\nlatency = "{}us"\nbandwidth = "{}Gbit/s"'.format(a, b, *of_pair())
        for a, b in pairs
    ]
    return read_network("\n".join(hosts + links), "test.toml")


def cabled_network(seed: int, num_ranks: int) -> Network:
    """A cable of its own kind between any two hosts."""
    rng = np.random.default_rng(seed)
    pairs = [(a, b) for a in range(num_ranks) for b in range(a)]
    return network_of(pairs, num_ranks, lambda: (rng.integers(1, 99), rng.integers(1, 40)))


@pytest.mark.parametrize("network", [cabled_network(0, 6), network_of_nics(10, 1, 5, 2, 10, 1)], ids=["cables", "NICs"])
def test_no_order_of_six_is_much_faster(network: Network) -> None:
    """On networks of which many orders are slow, what is found is within 2 % of the best.

    Orders of a ring that begin with another rank are the same.
    """
    ring = build(Collective.ALL_REDUCE, "ring", 6)
    found = find_placement(ring, network, SIZE)
    orders = [(0, *rest) for rest in permutations(range(1, 6))]
    assert found.time_s <= 1.02 * min(predict_time(permute_ranks(ring, order), network, SIZE) for order in orders)
    assert found.evaluations < 120


@pytest.mark.parametrize(
    ("algorithm", "collective"), [("binomial_tree", "broadcast"), ("halving_doubling", "reduce_scatter")]
)
def test_of_few_ranks_all_orders_are_tried(algorithm: str, collective: str) -> None:
    """So the best is certain; the root of a broadcast keeps its place."""
    network, schedule = cabled_network(5, 4), build(Collective(collective), algorithm, 4)
    first = int(collective == "broadcast")
    orders = [(*range(first), *rest) for rest in permutations(range(first, 4))]
    found = find_placement(schedule, network, SIZE)
    assert found.evaluations == len(orders)
    best_s = min(predict_time(permute_ranks(schedule, order), network, SIZE) for order in orders)
    assert found.time_s == pytest.approx(best_s, rel=1e-8)


def test_the_root_keeps_its_place() -> None:
    """Also where orders are searched for, and not all tried."""
    found = find_placement(build(Collective.REDUCE, "binomial_tree", 16), load_network(str(EXAMPLE)), SIZE, budget=12)
    assert found.order[0] == 0
    assert found.time_s < found.time_before_s


def test_orders_are_compared_as_a_runtime_executes_them() -> None:
    """One step after the other, which takes longer."""
    schedule, network = build(Collective.ALL_REDUCE, "double_binary_tree/4", 4), load_network(str(EXAMPLE))
    found = find_placement(schedule, network, SIZE, budget=4, runtime=OURS.runtime)
    placed = permute_ranks(schedule, found.order)
    assert found.time_s == predict_time(placed, network, SIZE, runtime=OURS.runtime)
    assert found.time_s != predict_time(placed, network, SIZE)


def test_a_line_is_gone_along_and_back() -> None:
    """Hosts on a line, numbered at random: a ring that goes to one end and back loads each cable once each way."""
    line = [3, 0, 5, 1, 6, 2, 4]
    network = network_of(pairwise(line), 7, lambda: (1, 8))
    ring = build(Collective.ALL_REDUCE, "ring", 7)
    along = permute_ranks(ring, line[::2] + line[1::2][::-1])
    assert find_placement(ring, network, SIZE).time_s <= 1.001 * predict_time(along, network, SIZE)


def test_never_worse_and_the_same_for_the_same_seed() -> None:
    """However small the budget; with a budget of one, or no time, there is only the order as it is."""
    network, tree = cabled_network(2, 7), build(Collective.ALL_REDUCE, "binomial_tree", 7)
    as_it_is = predict_time(tree, network, SIZE)
    for budget in (2, 9):
        found = find_placement(tree, network, SIZE, seed=3, budget=budget)
        assert found.time_s <= found.time_before_s == as_it_is
        assert found.evaluations <= budget
        assert found == find_placement(tree, network, SIZE, seed=3, budget=budget)
    for limit in ({"budget": 1}, {"seconds": 0}):
        found = find_placement(tree, network, SIZE, **limit)
        assert (found.order, found.evaluations) == (tuple(range(7)), 1)


@pytest.mark.parametrize("num_ranks", [1, 7])
def test_where_all_pairs_are_alike_nothing_is_moved(num_ranks: int) -> None:
    """Orders that differ by rounding alone are not preferred; one rank has one order, and no time passes."""
    found = find_placement(build(Collective.ALL_REDUCE, "ring", num_ranks), Network.uniform(1e-6, 1e9), SIZE)
    assert (found.order, found.gain, found.time_s > 0) == (tuple(range(num_ranks)), 1.0, num_ranks > 1)


def test_a_failed_cable_is_avoided_and_never_is_null() -> None:
    """Without a way round a ring never ends; with another order it does."""
    broken = cabled_network(1, 6).with_spec(failures=(Failure("h1->h0"),))
    ring = permute_ranks(build(Collective.ALL_REDUCE, "ring", 6), [1, 0, 2, 3, 4, 5])
    report = placement_dict(ring, broken, SIZE, find_placement(ring, broken, SIZE))
    assert (report["time_before_s"], report["gain"], report["time_s"] < 1) == (None, None, True)
    assert "never ends -> " in format_placement(report)


def test_the_budget_falls_with_the_number_of_transfers() -> None:
    """Few ranks: all orders of five; many: as it is, and the best by estimate."""
    budgets = [default_budget(build(Collective.ALL_REDUCE, "ring", n)) for n in (5, 64, 1024)]
    assert budgets == [120, 7, 2]


def test_orders_are_read_from_text_and_files(tmp_path: Path) -> None:
    """Numbers, a file of numbers, a JSON list, and what `ringsim order` saves."""
    path = tmp_path / "order"
    assert parse_placement(" 0, 2,1") == (0, 2, 1)
    for content in ("0,2,1\n", "[0, 2, 1]", '{"order": [0, 2, 1], "gain": 2}'):
        assert parse_placement(str(written(path, content))) == (0, 2, 1)
    for content in ("", "{", "{}", "[true]", '["0"]', "1.5", "0," + "9" * 5000, "[" * 10**5, f"[{'9' * 5000}]"):
        with pytest.raises(ValueError, match="order: is not an order: "):
            parse_placement(str(written(path, content)))


def test_the_command_saves_what_the_others_take(tmp_path: Path) -> None:
    """The time found is the time simulated with the file; its ring goes from host to host once."""
    saved = tmp_path / "order.json"
    network = ["--network", str(EXAMPLE), "--ranks", "16", "--size", "1MiB"]
    run("order", *network, "--budget", "4", "-o", saved)
    report = json.loads(saved.read_text())
    assert sum(a % 4 != b % 4 for a, b in pairwise((*report["order"], report["order"][0]))) == 4  # hops to other hosts
    for order in (saved, ",".join(map(str, report["order"]))):
        assert as_json("simulate", *network, "--order", order)["time_s"] == report["time_s"]
    assert "correct" in printed("verify", "--ranks", "16", "--order", saved)
