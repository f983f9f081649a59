"""`require_compiler`: whether `--compile` can work on this machine, found out before torch is loaded."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

OTHERWISE = "or leave --compile out"


def require_compiler() -> None:
    """Raise ValueError, which says what to install, if torch.compile would find no C++ compiler or no Python.h."""
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    compiler = os.environ.get("CXX", usual)
    if shutil.which(compiler) is None:
        raise ValueError(
            f"--compile: there is no C++ compiler {compiler!r}: install one (g++ or clang++) or name it in the "
            f"environment variable CXX; {OTHERWISE}"
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        raise ValueError(f"--compile: there is no {header}: install Python's headers (python3-dev), {OTHERWISE}")
