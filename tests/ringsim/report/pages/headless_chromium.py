"""A page in a headless Chromium: what its document is after its programs have run."""

import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 240  # it takes a second or two; on a busy machine many times that
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--window-size=1400,1000", "--virtual-time-budget=3000",
)  # fmt: skip
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
needs_chromium = pytest.mark.skipif(PROGRAM is None, reason=f"opens a page in a browser: none of {', '.join(NAMES)}")


def document_of(page: Path, profile: Path, fragment: str = "") -> str:
    """Returns the HTML of the document; fragment: such as #sort=files:0. profile: an empty directory for Chromium."""
    assert PROGRAM
    command = [PROGRAM, *OPTIONS, f"--user-data-dir={profile}", "--dump-dom", f"file://{page}{fragment}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    return done.stdout
