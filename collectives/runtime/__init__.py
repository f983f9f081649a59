"""How a schedule is carried out on a process group: transports, the queue, buffers and failures."""

from collectives.runtime.chunk_transports import GlooTransport, SharedMemoryTransport
from collectives.runtime.chunks import Reduce, reduce_into
from collectives.runtime.device_transport import CPU, STAGED, Transport, Transports, call_timeout, has_backend, home_of
from collectives.runtime.errors import CollectiveError, FlightRecord, naming_failures
from collectives.runtime.executor import Executor, execute, is_plain
from collectives.runtime.failures import FailureRecords, explain_failures, has_failed, name_first_to_fail
from collectives.runtime.fingerprint import CallCheck, Fingerprint, FingerprintCheck, MismatchError, check_calls
from collectives.runtime.gathers import TEXT_BYTES, RowAllGather, TextAllGather, gather_objects
from collectives.runtime.gloo_threads import (
    GLOO_THREAD_POLICIES,
    GlooThreadPolicy,
    batch_policy_for_new_groups,
    have_gloo_threads_batch_policy,
    set_gloo_thread_policy,
)
from collectives.runtime.group_state import resolve, state_of
from collectives.runtime.hooks import Event, span
from collectives.runtime.queue import CollectiveQueue, close_queue
from collectives.runtime.recorded_calls import (
    RecordedGroup,
    Recorder,
    StreamMoment,
    is_lent,
    record_as_lent,
    record_group,
    recorded_group,
)
from collectives.runtime.sharing import (
    TRANSPORTS,
    Sharing,
    machine_name,
    namespace_name,
    transport_in_use,
    use_transport,
)
from collectives.runtime.tags import UNSTAMPED, CallStamp, Tag
from collectives.runtime.work import Work
