"""`Question`: a collective whose time is asked for, and many of them as columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringsim.measurements import NOT_KNOWN, PT2PT_BANDWIDTH, PT2PT_LATENCY, SENDRECV, NcclSettings
from ringsim.network import Floats

Bools = npt.NDArray[np.bool_]

RING_TESTS = ("all_reduce", "all_gather", "reduce_scatter")
CHAIN_TESTS = ("broadcast", "reduce")
MESSAGE_TESTS = (SENDRECV, PT2PT_LATENCY, PT2PT_BANDWIDTH)
TESTS = (*RING_TESTS, *CHAIN_TESTS, *MESSAGE_TESTS)  # all that there is a formula for


class Question(NamedTuple):
    """A collective (or one of MESSAGE_TESTS) whose time is to be predicted: its size, ranks and hosts.

    settings: the algorithm, protocol and channels that NCCL's environment variables asked for.
    """

    test: str
    size_bytes: int
    num_ranks: int
    num_nodes: int
    settings: NcclSettings = NOT_KNOWN


@dataclass(frozen=True, slots=True, eq=False)
class QuestionColumns:
    """The questions as columns, (num_questions,) each."""

    size: Floats
    ranks: Floats
    nodes: Floats
    is_all_reduce: Bools
    is_message: Bools
    is_whole: Bools  # what is passed on is the whole tensor, not a share of it
    is_sendrecv: Bools  # a single message of NCCL's
    is_stream: Bools  # many messages are on the way, so that only their bytes take time
    settings: tuple[NcclSettings, ...]

    @property
    def senders(self) -> Floats:
        """The ranks of a host that send to another host at once: one if it is a message, all if it is a collective."""
        return np.where(self.is_message, 1, self.ranks / self.nodes)

    @classmethod
    def from_questions(cls, questions: Sequence[Question]) -> "QuestionColumns":
        tests, *numbers, settings = zip(*questions, strict=True)
        size, ranks, nodes = (np.array(column, dtype=float) for column in numbers)

        def are(*kind: str) -> Bools:
            return np.array([test in kind for test in tests])

        is_message = are(*MESSAGE_TESTS)
        is_whole = is_message | are(*CHAIN_TESTS)
        is_all_reduce, is_sendrecv, is_stream = are("all_reduce"), are(SENDRECV), are(PT2PT_BANDWIDTH)
        return cls(size, ranks, nodes, is_all_reduce, is_message, is_whole, is_sendrecv, is_stream, settings)

    def admit(self, algorithm: str, protocol: str) -> Bools:
        """Return for which questions NCCL may take it; but for PAT, only an all_reduce has a choice of algorithms."""
        names = np.where((self.nodes > 1) & (algorithm == "nvls"), "nvlstree", algorithm).tolist()
        admitted = [
            settings.admits(name if reduces or name == "PAT" else "", protocol)
            for settings, reduces, name in zip(self.settings, self.is_all_reduce.tolist(), names, strict=True)
        ]
        return np.array(admitted)
