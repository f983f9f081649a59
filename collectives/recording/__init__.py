"""Recording a program as one rank of many: process groups that send nothing, and a script that runs on them."""

from collectives.recording.group import RecordingGroup, recording
from collectives.recording.recorder import Recorder
