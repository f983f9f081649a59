"""Recording a program as one rank of many, on process groups that send nothing."""

from collectives.recording.group import RecordingGroup, recording
from collectives.recording.recorder import Recorder
