"""Schedules in other projects' formats: MSCCL's XML and GOAL."""

from ringsim.formats.goal import goal_lines
from ringsim.formats.msccl_file import msccl_lines
from ringsim.formats.msccl_reader import read_msccl
