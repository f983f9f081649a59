"""How a schedule is carried out on a process group: transports, the queue, buffers and failures."""

from collectives.runtime.errors import CollectiveError, naming_failures
from collectives.runtime.executor import Executor, execute, is_plain, resolve
from collectives.runtime.failures import explain_failures, name_first_to_fail
from collectives.runtime.fingerprint import UNNUMBERED, CallCheck, Fingerprint, MismatchError
from collectives.runtime.flight_record import Ledger
from collectives.runtime.gloo_threads import calm_new_polling, calm_polling, is_calm
from collectives.runtime.object_gather import Exchange
from collectives.runtime.profiler_spans import span
from collectives.runtime.queue import Lane, check_calls, close_lane, lane_of
from collectives.runtime.run import Event, Run, Source
from collectives.runtime.transport import CPU, STAGED, Transport, has_backend, home_of
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
    "Fingerprint",
    "Lane",
    "Ledger",
    "MismatchError",
    "Run",
    "Source",
    "Transport",
    "Work",
    "calm_new_polling",
    "calm_polling",
    "check_calls",
    "close_lane",
    "execute",
    "explain_failures",
    "has_backend",
    "home_of",
    "is_calm",
    "is_plain",
    "lane_of",
    "name_first_to_fail",
    "naming_failures",
    "resolve",
    "span",
]
