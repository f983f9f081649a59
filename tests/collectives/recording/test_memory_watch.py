"""`MemoryWatch` in a process with other threads, such as that of a data loader."""

import sys
import threading

from collectives.recording.memory import MemoryWatch
from collectives.recording.recorder import Recorder


def test_other_threads_go_on() -> None:
    """CPython raises SystemError in a thread that finishes a tuple to which a list of all objects refers meanwhile."""
    errors: list[SystemError] = []
    is_over = threading.Event()

    def make_tuples() -> None:
        while not is_over.is_set():
            try:
                tuple(number for number in range(3))
            except SystemError as error:
                errors.append(error)

    thread, interval = threading.Thread(target=make_tuples), sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        thread.start()
        for _ in range(4):
            watch = MemoryWatch(Recorder())
            watch.start()
            watch.stop()
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        thread.join()
    assert not errors
