"""How a schedule is carried out on a process group: transports, the queue, buffers and failures."""

from collectives.runtime.errors import CollectiveError, naming_failures
from collectives.runtime.executor import Executor, execute, is_plain, resolve
from collectives.runtime.failure_records import FailureRecords
from collectives.runtime.failures import explain_failures, name_first_to_fail
from collectives.runtime.fingerprint import (
    UNNUMBERED,
    CallCheck,
    Fingerprint,
    FingerprintCheck,
    MismatchError,
    check_calls,
)
from collectives.runtime.flight_record import Ledger
from collectives.runtime.gloo_threads import calm_new_polling, calm_polling, is_calm
from collectives.runtime.group_state import GroupState, state_of
from collectives.runtime.object_gather import Exchange
from collectives.runtime.profiler_spans import span
from collectives.runtime.queue import Lane, close_queue
from collectives.runtime.run import Event, Run, Source
from collectives.runtime.tags import Tag
from collectives.runtime.transport import CPU, STAGED, Transport, Transports, has_backend, home_of
from collectives.runtime.work import Work

__all__ = [
    "CPU",
    "STAGED",
    "UNNUMBERED",
    "CallCheck",
    "CollectiveError",
    "Event",
    "Exchange",
    "Executor",
    "FailureRecords",
    "Fingerprint",
    "FingerprintCheck",
    "GroupState",
    "Lane",
    "Ledger",
    "MismatchError",
    "Run",
    "Source",
    "Tag",
    "Transport",
    "Transports",
    "Work",
    "calm_new_polling",
    "calm_polling",
    "check_calls",
    "close_queue",
    "execute",
    "explain_failures",
    "has_backend",
    "home_of",
    "is_calm",
    "is_plain",
    "name_first_to_fail",
    "naming_failures",
    "resolve",
    "span",
    "state_of",
]
