"""A real browser: Chromium over a pipe, in the DevTools protocol, and the viewer that it looks at."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import until

__all__ = ["CHROMIUM", "Browser", "viewed"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """Chromium without a window. `addresses` are those of its requests; `complaints`, errors."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        here, self._write = os.pipe()
        self._read, there = os.pipe()
        command = f'exec "$@" --remote-debugging-pipe 3<&{here} 4>&{there}'
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", command, "chromium", CHROMIUM, *options],
            pass_fds=(here, there), stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(here)
        os.close(there)
        self._rest, self._number, self._session = b"", 0, ""
        self.addresses: list[str] = []
        self.complaints: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **params: Any) -> Any:
        """Return the answer to a request; note the requests of the page meanwhile."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("method") == "Network.requestWillBeSent":
                self.addresses.append(said["params"]["request"]["url"])
            if said.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                self.complaints.append(json.dumps(said["params"]))
            if said.get("id") == self._number:
                assert "result" in said, said
                return said["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._read, 1 << 20)
            assert data, "the browser has ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def until(self, expression: str) -> Any:
        """Return the value of `expression` once it is true."""
        return until(lambda: self.value(expression), f"true: {expression}", every_s=0.2)

    def key(self, name: str) -> None:
        """Press a key."""
        for kind in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def emulate(self, width: int, dark: bool = False, height: int = 900) -> None:
        """Show pages at this width, in light or dark colours."""
        phone = width < 500
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path, height: int = 0) -> None:
        """Save a picture of the page, as .png or .webp: its first `height` pixels, or all of it."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "scale": 1, "width": size["width"], "height": min(height or 1e9, size["height"])}
        shot = self.ask("Page.captureScreenshot", format=path.suffix[1:], captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)


@contextmanager
def viewed(run: Path, *given: str) -> Iterator[str]:
    """Serve the pages of `run` until the end of the block; give their address."""
    command = [sys.executable, "-m", "rolemesh.cli", "view", str(run), "--no-open", *given]
    viewer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert viewer.stdout is not None
    try:
        yield viewer.stdout.readline().strip()
    finally:
        viewer.terminate()
        viewer.wait()  # open streams do not keep it from its end
        viewer.stdout.close()
