"""Execution of a schedule on a process group: transports, queue, buffers and failures."""

from collectives.runtime.agreement import (
    TEXT_BYTES,
    CallCheck,
    Fingerprint,
    FingerprintCheck,
    MismatchError,
    RowAllGather,
    TextAllGather,
    check_calls,
    gather_objects,
)
from collectives.runtime.backends import (
    CPU,
    GLOO_THREAD_POLICIES,
    STAGED,
    CallTimeout,
    GlooThreadPolicy,
    Transport,
    Transports,
    batch_policy_for_new_groups,
    has_backend,
    have_gloo_threads_batch_policy,
    home_of,
    set_gloo_thread_policy,
    writing_to,
)
from collectives.runtime.chunk_transports import GlooTransport, SharedMemoryTransport
from collectives.runtime.chunks import Reduce, reduce_into
from collectives.runtime.errors import CollectiveError, FlightRecord, naming_failures
from collectives.runtime.executor import Executor, RunOperands, execute, is_plain
from collectives.runtime.failures import FailureRecords, explain_failures, has_failed, name_first_to_fail
from collectives.runtime.group_state import lazily, resolve, state_of
from collectives.runtime.messages import UNSTAMPED, CallStamp, Tag
from collectives.runtime.queue import CollectiveQueue, Work, close_queue
from collectives.runtime.schedule_run import Event, span
from collectives.runtime.sharing import (
    TRANSPORTS,
    Sharing,
    machine_name,
    namespace_name,
    transport_in_use,
    use_transport,
)
