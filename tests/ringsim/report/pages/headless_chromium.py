"""A headless Chromium that opens one page after the other: what a document is after its programs have run."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--window-size=1400,1000", "--remote-debugging-pipe",
)  # fmt: skip
PROGRAM = next(filter(None, map(shutil.which, NAMES)), None)
needs_chromium = pytest.mark.skipif(PROGRAM is None, reason=f"opens a page in a browser: none of {', '.join(NAMES)}")


class Browser:
    """It listens on file 3 and answers on file 4: JSON, each message ended by a NUL (Chrome DevTools Protocol)."""

    def __init__(self, profile: Path) -> None:
        """profile: an empty directory for Chromium."""
        assert PROGRAM
        (hears, to_it), (from_it, says) = os.pipe(), os.pipe()
        command = ["bash", "-c", f'exec "$@" 3<&{hears} 4>&{says}', "bash", PROGRAM, *OPTIONS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}"], pass_fds=(hears, says), stderr=subprocess.DEVNULL
        )
        os.close(hears)
        os.close(says)
        self._to, self._from = os.fdopen(to_it, "wb"), os.fdopen(from_it, "rb")
        self._last, self._rest, self._loaded = 0, b"", False

    def document(self, page: Path, fragment: str = "") -> str:
        """Return the HTML of the document; fragment: such as #sort=files:0."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable", session)
        self._loaded = False
        self._call("Page.navigate", session, url=f"file://{page}{fragment}")
        while not self._loaded:
            self._message()
        result = self._call("Runtime.evaluate", session, expression="document.documentElement.outerHTML")["result"]
        self._call("Target.closeTarget", targetId=target)
        return str(result["value"])

    def close(self) -> None:
        """End it, and all of its processes."""
        self._call("Browser.close")
        self._process.wait(60)
        self._to.close()
        self._from.close()

    def _call(self, method: str, session: str | None = None, **params: Any) -> Any:
        self._last += 1
        message = {"id": self._last, "method": method, "params": params} | ({"sessionId": session} if session else {})
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while (answer := self._message()).get("id") != self._last:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._from.fileno(), 2**16)
            assert more, "Chromium has ended"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._loaded |= message.get("method") == "Page.loadEventFired"
        return message
