"""The all-reduce of a bucket: NCCL's choice where the network describes it, else one algorithm for all sizes."""

from dataclasses import replace

import pytest
from msgspec import structs

from ringsim import Collective, Network, load_network, predict_time
from ringsim.libraries import GLOO, LIBRARIES, Call, in_even_chunks, predict
from ringsim.network import Jitter
from ringsim.network.spec import Switch
from ringsim.registry import build
from ringsim.simulation import Runtime, time_queue
from ringsim.training_step import BucketCaps, DdpConfig, GroupCalls, Parameter, StepProfile, group_calls, predict_ddp
from tests.ringsim.made_networks import choose
from tests.ringsim.traces.made_trace import call_of

NCCL = LIBRARIES["nccl"]
CLUSTER = load_network("dgx-h100-cluster")
EACH = BucketCaps(1, 1)  # a bucket for each parameter
SMALL, MIDDLE, LARGE = 1001, 3_000_001, 40_000_003  # elements


def formula_s(hosts: list[int], size_bytes: int) -> float:
    """Return the seconds of an all_reduce on hosts of so many ranks."""
    return predict(CLUSTER, [Call.on_hosts("all_reduce", size_bytes, hosts)])[0][0]


def test_each_bucket_is_sent_as_nccl_would() -> None:
    """By size; and takes what a simulation of that schedule over that protocol says, and the start of it."""
    parameters = tuple(Parameter(str(i), count, 3.0 - i) for i, count in enumerate((SMALL, MIDDLE, LARGE)))
    profile = StepProfile(parameters, 1.0, 3.0, 0.0)  # ready one long after the other, so that none waits for another
    step = predict_ddp(profile, CLUSTER, 16, DdpConfig(EACH, "nccl")).prediction
    assert step.not_chosen == ""
    taken = [(f"{span.algorithm} {span.protocol}", span.under_way_s) for span in step.timeline.calls]
    assert [name for name, _ in taken] == ["nvls Simple", "nvls Simple", "nccl_tree LL"]
    for elements, (name, time_s) in zip((LARGE, MIDDLE, SMALL), taken, strict=True):
        choice = choose(CLUSTER, Collective.ALL_REDUCE, 16, 4 * elements)
        assert name == f"{choice.schedule.algorithm} {choice.protocol.name}"
        messages_s = predict_time(choice.schedule, choice.network, choice.sent_bytes)
        assert time_s == pytest.approx(choice.start_s + messages_s, rel=1e-9)
    small = structs.replace(profile, parameters=parameters[:1])
    (call,) = predict_ddp(small, CLUSTER, 16, DdpConfig(EACH, "nccl", "double_binary_tree")).prediction.timeline.calls
    assert (call.algorithm, call.protocol) == ("double_binary_tree", None)  # as it is asked for


def test_an_algorithm_that_is_named_is_not_that_which_nccl_chooses() -> None:
    """For a call of the same size, in any order; it is on the network as it is."""
    group = GroupCalls(CLUSTER, 64, NCCL)
    made = [group.call(call_of("all_reduce", 2**14, 2, algorithm=name)) for name in ("", "ring", "")]
    assert [planned.call.schedule.algorithm for planned in made] == ["nccl_tree", "ring", "nccl_tree"]


def test_gloos_ring_cuts_by_size() -> None:
    """Segments of at most 1 MiB."""
    group = GroupCalls(CLUSTER, 2, LIBRARIES["gloo"])
    schedules = [group.call(call_of("all_reduce", size, 4)).call.schedule for size in (1000, 2000, 16 * 2**20)]
    assert [schedule.num_chunks for schedule in schedules] == [4, 4, 16]
    assert schedules[0] is schedules[1]


@pytest.mark.parametrize(("preset", "elements"), [("dgx-h100-cluster", SMALL), ("dgx-a100", 1_000_001)])
def test_chunks_are_made_even(preset: str, elements: int) -> None:
    """By less than one element each, which changes the time by 2 % at most."""
    choice = choose(load_network(preset), Collective.ALL_REDUCE, 16, 4 * elements)
    even = in_even_chunks(choice.schedule, 4 * elements, 4)
    assert 0 < even - 4 * elements < 4 * choice.schedule.num_chunks
    assert len(set(choice.schedule.chunk_bytes(even, 4).tolist())) == 1
    assert in_even_chunks(choice.schedule, even, 4) == even
    cut_s, even_s = (
        choice.start_s + predict_time(choice.schedule, choice.network, size_bytes, element_bytes=4)
        for size_bytes in (4 * elements, even)
    )
    assert even_s == pytest.approx(cut_s, rel=0.02)


@pytest.mark.parametrize("num_ranks", [2, 6, 48])
def test_an_all_to_all_has_as_many_chunks_per_tensor_as_ranks(num_ranks: int) -> None:
    """So each rank's tensor grows by less than one element per rank, not by the chunks of all tensors."""
    schedule = build(Collective.ALL_TO_ALL, "direct", num_ranks, 1000)
    even = in_even_chunks(schedule, 4 * SMALL, 4)
    assert 0 <= even - 4 * SMALL < 4 * num_ranks
    assert len(set(schedule.chunk_bytes(even, 4).tolist())) == 1


UNKNOWN = "it does not describe NCCL: give --network with a file that does"


@pytest.mark.parametrize(
    ("network", "changes", "why"),
    [
        (Network.uniform(1e-5, 1e9), {}, f"the default network (--latency, --bandwidth): {UNKNOWN}"),
        (load_network("ib-100g"), {}, f"ib-100g: {UNKNOWN}"),
        (CLUSTER, {"runtime": GLOO.runtime},
         "dgx-h100-cluster: several workers would be under way over one protocol only"),
        (CLUSTER.with_spec(jitter=Jitter(latency=0.1)), {},
         "dgx-h100-cluster: its times are drawn at random, or some of it fails"),
    ],
)  # fmt: skip
def test_where_it_is_not_known_a_ring_is_taken(network: Network, changes: dict[str, Runtime], why: str) -> None:
    """On the network as it is; and it is said why."""
    calls_of_group = GroupCalls(network, 4, replace(NCCL, **changes))  # type: ignore[arg-type]
    call = calls_of_group.call(call_of("all_reduce", 1000, 4))
    assert (call.protocol, call.call.schedule.algorithm, call.call.network) == (None, "ring", None)
    assert calls_of_group.why_not == why


LONGER = CLUSTER.with_spec(switch=Switch(latency_s=1e-6))  # which NCCL's formula does not know


def test_too_many_transfers_are_timed_by_nccls_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is near what is simulated; only the sizes that need it are, and said to be."""
    size_bytes = 4 * LARGE
    simulated = GroupCalls(LONGER, 32, NCCL)
    simulated_s = simulated.alone_s(simulated.call(call_of("all_reduce", size_bytes, 4)))
    formula = formula_s([8] * 4, size_bytes)
    assert formula < simulated_s < 1.1 * formula
    monkeypatch.setattr(group_calls, "QUEUED_TRANSFERS", 2000)
    group = GroupCalls(LONGER, 32, NCCL)
    assert group.call(call_of("all_reduce", 4 * SMALL, 4)).formula_s is None
    assert group.by_formula == ""
    by_formula = group.call(call_of("all_reduce", size_bytes, 4))
    assert group.by_formula.startswith("nvls on 32 ranks: the time of NCCL's own formula, as ")
    assert (by_formula.protocol, group.why_not) == ("Simple", "")
    assert group.alone_s(by_formula) == formula


def test_where_the_formula_knows_all_nothing_is_simulated() -> None:
    """A simulation would take as long as it says; other ranks of the hosts in groups of their own may share NICs."""
    call = call_of("all_reduce", 4 * MIDDLE, 4)
    group = GroupCalls(CLUSTER, 2048, NCCL)
    assert group.call(call).formula_s == formula_s([8] * 256, 4 * MIDDLE)
    assert group.by_formula == ""
    shared = CLUSTER.with_spec(
        host=structs.replace(CLUSTER.spec.host, nics=structs.replace(CLUSTER.spec.host.nics, count=4))
    )
    own_nics, few_nics = (GroupCalls(network, 32, NCCL, range(0, 32, 8)) for network in (CLUSTER, shared))
    one_s, two_s = (group.alone_s(group.call(call)) for group in (own_nics, few_nics))
    assert one_s == pytest.approx(formula_s([1] * 4, 4 * MIDDLE), rel=1e-3)
    assert two_s > 1.3 * one_s


def test_rings_of_thousands_of_ranks_are_simulated() -> None:
    """One host stands for all: of 2 million transfers few are left, and no NIC is left out."""
    group = GroupCalls(LONGER, 512, NCCL)
    planned = group.call(call_of("all_gather", 2**30, 1))
    assert planned.call.schedule.num_transfers == 8 * 512 * 511
    assert (planned.formula_s, group.by_formula) == (None, "")
    one_nic_s = 2**30 / (400e9 / 8)
    assert one_nic_s / 8 < group.alone_s(planned) < one_nic_s / 2


@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_other_backends_do_not_choose(backend: str) -> None:
    """And there is nothing to say of it."""
    calls_of_group = GroupCalls(CLUSTER, 16, LIBRARIES[backend])
    assert calls_of_group.call(call_of("all_reduce", 1000, 4)).protocol is None
    assert calls_of_group.why_not == ""


def test_a_call_with_a_network_of_its_own() -> None:
    """Takes what it takes there; it is not for a queue, where it could share the network with another call."""
    slow, fast = Network.uniform(0.0, 1.0), Network.uniform(0.0, 2.0)
    group = GroupCalls(slow, 2, LIBRARIES["ring"])
    planned = group.call(call_of("all_reduce", 8, 1))
    assert group.alone_s(planned) == 8.0
    elsewhere = planned.call._replace(network=fast, call_s=1.0)
    assert group.alone_s(planned._replace(call=elsewhere)) == 5.0
    with pytest.raises(ValueError, match=r"calls\[1\].network: must be None"):
        time_queue([planned.call, elsewhere], slow, Runtime(num_workers=2))


def test_a_call_has_the_channels_of_its_group() -> None:
    """On DGX H100: 24 of a ring in a host, 16 of NVLS and across hosts; no preset of other hosts says how many."""
    everywhere, in_host = GroupCalls(CLUSTER, 16, NCCL), GroupCalls(CLUSTER, 16, NCCL, range(8))
    assert everywhere.call(call_of("all_gather", 2**30, 2)).channels == 16
    assert in_host.call(call_of("all_gather", 2**30, 2)).channels == 24
    assert in_host.call(call_of("all_reduce", 2**30, 2)).channels == 16
    assert GroupCalls(load_network("dgx-a100"), 8, NCCL).call(call_of("all_gather", 2**30, 2)).channels == 0


@pytest.mark.parametrize("backend", ["gloo", "nccl", "ring"])
def test_every_collective_takes_some_time(backend: str) -> None:
    """On any backend; a rank sends 3 of 4 shares of an all_to_all, and a gather sends 3 shares to one port."""
    group = GroupCalls(CLUSTER, 16, LIBRARIES[backend])
    for collective in ("all_to_all", "gather", "scatter", "barrier", "reduce", "broadcast"):
        assert 0 < group.alone_s(group.call(call_of(collective, 0 if collective == "barrier" else 2**20, 4))) < 1
    slow = GroupCalls(Network.uniform(0.0, 1.0), 4, LIBRARIES[backend])
    assert [slow.alone_s(slow.call(call_of(name, 400, 4))) for name in ("all_to_all", "gather")] == [300, 300]
    passed = [structs.replace(call_of("sendrecv", 400, 4), peer=distance) for distance in (0, 1, 3)]
    assert [slow.alone_s(slow.call(call)) for call in passed] == [0, 400, 400]  # whole, and nothing to itself
    with pytest.raises(ValueError, match="^'all_redcue': there is no such collective$"):
        group.call(call_of("all_redcue", 4, 4))
