"""Where a figure comes from: machine, versions, date, command."""

import datetime
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

FROM_PYTHON = "from Python"


def provenance() -> dict[str, Any]:
    """Returns what a reader must know to judge a figure, for JSON."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "machine": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ringsim": version("ringsim"),
    }


def _command() -> str:
    """The program and its arguments; for what is typed in or in a notebook that it was made from Python."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    if program in ("", "-", "-c") or program.startswith("ipykernel"):
        return FROM_PYTHON
    return " ".join([_program(), *sys.argv[1:]])


def _program() -> str:
    """The script's name, or `-m package` for a package that is run as a program: its file is always __main__.py."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or Path(sys.argv[0]).name != "__main__.py":
        return Path(sys.argv[0]).name
    return f"-m {spec.name.removesuffix('.__main__')}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
