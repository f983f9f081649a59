"""`ProfilerTrace`: some steps of a run as a time line for ui.perfetto.dev, by torch.profiler."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from ringsim.files import atomic_file

WARM_UP_STEPS = 3  # buffers are touched for the first time, DDP forms its buckets anew
STEPS = 3


class ProfilerTrace:
    """Of STEPS steps after WARM_UP_STEPS others; of fewer, after fewer, where there are not as many.

    path: where to write it; None: record nothing. first, end: the steps of the run.
    """

    def __init__(self, path: Path | None, first: int, end: int) -> None:
        self._path = path
        self._begin = first + min(WARM_UP_STEPS, max(0, end - first - STEPS))
        self._last = min(self._begin + STEPS, end) - 1
        self._profile: Any = None

    @contextmanager
    def recording(self, step: int) -> Iterator[None]:
        """Record what happens in the block, if that step is one of those to be recorded."""
        if self._path is not None and step == self._begin:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
            # Else the transfers that a thread of the collectives' own carries out would be missing.
            every_thread = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
            self._profile = profile(activities=activities, experimental_config=every_thread, acc_events=True)
            self._profile.start()
        done = False
        try:
            yield
            done = True
        finally:
            if self._profile is not None and (self.is_over(step) or not done):
                self._profile.stop()

    def is_over(self, step: int) -> bool:
        """Whether that step was the last one to be recorded."""
        return self._profile is not None and step == self._last

    def save(self) -> None:
        """Write the trace, whole or not at all. Raises OSError if it cannot be written."""
        assert self._path is not None
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(whole))
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self._path) as file:
                file.write(whole.read_bytes())
