"""`Selection`: the schedule that --collective, --algorithm, --ranks, --order and --size select."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from click import option

from ringsim.analysis import why_not_explained
from ringsim.cli.options import Decorator, collective_option, is_given, known_algorithms, ranks_option, together
from ringsim.console import Name, Quantity, say
from ringsim.libraries import DIRECT, LIBRARIES, LIBRARY, LIBRARY_TITLE, Call, Plan, library_of
from ringsim.limits import CHOSEN_TRANSFERS
from ringsim.network import Network
from ringsim.registry import build, names_file
from ringsim.report import parse_placement
from ringsim.schedule import Collective, Schedule, permute_ranks
from ringsim.simulation import RULE, Runtime
from ringsim.units import format_time


class PlannedRun(NamedTuple):
    """A schedule and its network, both from the library's plan if there is one.

    too_large: why the run is not explained, else None; the network is then not the plan's.
    """

    schedule: Schedule
    network: Network
    plan: Plan | None
    too_large: str | None


@dataclass(frozen=True, slots=True)
class Selection:
    """A schedule with its ranks in the places of --order; size: 0: no --size.

    algorithm: None or LIBRARY: `plan` returns the choice of the network's library.
    """

    schedule: Schedule
    size: int = 0
    algorithm: str | None = None
    order: Sequence[int] | None = None

    @classmethod
    def of(
        cls,
        collective: Collective,
        algorithm: str | None,
        ranks: int,
        order: Sequence[int] | None = None,
        size: int | None = None,
        *,
        library: bool = False,
    ) -> "Selection":
        """Return the selection of the options; a file determines the collective without --collective.

        library: whether LIBRARY may be selected; until `plan`, the schedule is the default of other networks.
        """
        asked = collective if is_given("collective") or not names_file(algorithm or "") else None
        name = algorithm
        if name is None or (library and name == LIBRARY):
            name = "direct" if asked in DIRECT else "ring"
        schedule = build(asked, name, ranks, size)
        return cls(schedule if order is None else permute_ranks(schedule, order), size or 0, algorithm, order)

    def placed(self, schedule: Schedule) -> Schedule:
        return schedule if self.order is None else permute_ranks(schedule, self.order)

    def other(self, algorithm: str) -> "Selection":
        own = self.schedule
        schedule = self.placed(build(own.collective, algorithm, own.num_ranks, self.size))
        return replace(self, schedule=schedule, algorithm=algorithm)

    def plan(self, network: Network, runtime: Runtime = RULE) -> Plan | None:
        """Return the library's plan; None for one rank, or without a library.

        Raises ValueError for an unknown choice, and for a network on which messages take no time.
        """
        num_ranks, collective = self.schedule.num_ranks, self.schedule.collective
        network.require_priced(num_ranks)
        library = LIBRARIES[LIBRARY] if self.algorithm == LIBRARY else library_of(network)
        if self.algorithm != LIBRARY and (self.algorithm or num_ranks == 1 or not library.chooses):
            return None if num_ranks == 1 else library.fastest_plan(self.schedule, network, self.size, runtime=runtime)
        chosen = library.choose(network, Call.on(network, collective, num_ranks, self.size), runtime=runtime)
        chosen = replace(chosen, schedule=self.placed(chosen.schedule))
        chosen.require_known(CHOSEN_TRANSFERS, runtime)
        if self.algorithm is None:
            say(f"{network.name}: {library.title} would use {chosen.schedule.algorithm}; --algorithm names another")
        return chosen

    def planned(self, network: Network, runtime: Runtime = RULE) -> PlannedRun:
        """Return the run to simulate. Raises ValueError as `plan` does."""
        plan = self.plan(network, runtime)
        schedule = plan.schedule if plan else self.schedule
        too_large = why_not_explained(schedule) or (plan.why_by_formula(runtime) if plan else None)
        return PlannedRun(schedule, plan.network if plan and not too_large else network, plan, too_large)

    def drawn(self, network: Network) -> tuple[Schedule, Network]:
        """Return schedule and network of a picture; a line on stderr names the protocol and the omitted start."""
        plan = self.plan(network)
        if plan is None:
            return self.schedule, network
        if why := plan.why_by_formula(RULE):
            raise ValueError(f"there is no picture of {plan.schedule}: {why}; give fewer ranks")
        start = format_time(plan.start_s)
        say(f"over {plan.library}'s protocol {plan.protocol.name}, without the {start} before its first message")
        return plan.schedule, plan.network


def _options(library: bool, *more: Decorator) -> Decorator:
    help_text = (
        "Algorithm that ringsim algorithms lists, perhaps in segments (ring/4) or for hosts of 4 ranks (hierarchical@4)"
        + (f", {LIBRARY} for {LIBRARY_TITLE}'s choice" if library else "")
        + ", FILE.py:FUNCTION, or MSCCL's FILE.xml [default: "
        + (f"{LIBRARY} if the network describes {LIBRARY_TITLE}, else " if library else "")
        + "ring, or direct for all_to_all, gather and scatter]."
    )
    algorithm_option = option("--algorithm", type=Name("name", known_algorithms), help=help_text)
    make = partial(Selection.of, library=library)
    return together("selection", make, collective_option(), algorithm_option, ranks_option, *more)


_order_option = option(
    "--order", type=Quantity("order", parse_placement), help="Rank order: 0,2,1,3, or a file that ringsim order wrote."
)
unplaced_options = _options(False)
schedule_options = _options(False, _order_option)
library_options = _options(True, _order_option)
