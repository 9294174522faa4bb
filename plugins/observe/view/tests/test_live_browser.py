"""The page of the flow of a job that runs, in a real browser: its numbers change without a reload."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.soak, pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")]
LIMIT_S = 30.0
ROLES = """
import time
import numpy as np
from rolemesh import Batch, Split, Workload, operator

class Source(Workload):
    @operator(returns=Split())
    def make(self):
        time.sleep(0.01)
        return Batch({"number": np.arange(4000)})

class Sink(Workload):
    @operator(batch=Split())
    def take(self, batch):
        time.sleep(0.03)
"""
FLOW = """
from rolemesh import flow

@flow
def numbers(job):
    job.sink.take(job.source.make())
"""
JOB = """
name: live
flow: flow.py:numbers
steps: 100000
roles:
  source: {use: "roles:Source", resources: {cpu: 0.1}, world_size: 2}
  sink: {use: "roles:Sink", resources: {cpu: 0.1}}
"""


class Browser:
    """Chromium over a pipe, in the DevTools protocol. `addresses` are those of its requests."""

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
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Network.enable")

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
        end = time.monotonic() + LIMIT_S
        while not (value := self.value(expression)):
            assert time.monotonic() < end, f"not true: {expression}"
            time.sleep(0.2)
        return value

    def picture(self, width: int, path: Path) -> None:
        """Save a picture of the whole page at this width."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (tmp_path / name).write_text(text)
    command = [str(Path(sys.executable).with_name("rolemesh")), "run", "job.yaml", "--backend", "local"]
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen([*command, "--runs-dir", "runs"], cwd=tmp_path, stdout=log, stderr=log)
    try:
        end = time.monotonic() + LIMIT_S
        while not list(tmp_path.glob("runs/live/record/sink-0/*.jsonl")):
            assert running.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < end, "the sink has no record"
            time.sleep(0.2)
        yield tmp_path / "runs/live"
    finally:
        running.terminate()
        running.wait(LIMIT_S)


@pytest.fixture
def address(job: Path) -> Iterator[str]:
    viewer = subprocess.Popen(
        [sys.executable, "-m", "rolemesh.cli", "view", str(job), "--no-open"], stdout=subprocess.PIPE, text=True
    )
    assert viewer.stdout is not None
    try:
        yield viewer.stdout.readline().strip()
    finally:
        viewer.kill()
        viewer.wait()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    found = Browser(tmp_path / "profile")
    yield found
    found.close()


def test_the_numbers_of_edges_change_without_a_reload_and_no_other_host_is_asked(
    address: str, browser: Browser, tmp_path: Path
) -> None:
    browser.ask("Page.navigate", url=address)
    cell = "document.querySelector('#edges td[data-number={}]').textContent"
    browser.until("document.querySelector('#edges') !== null")
    browser.until(f"/\\d.*B.s/.test({cell.format('bytes_s')})")
    browser.value("window.same = 'page'")
    texts = "[...document.querySelectorAll('#edges td.number')].map(cell => cell.textContent).join('|')"
    before = browser.value(texts)
    after = browser.until(f"(({texts}) !== {json.dumps(before)}) && ({texts})")
    assert (browser.value("window.same"), len(before.split("|"))) == ("page", len(after.split("|")))
    assert float(browser.value(cell.format("values_s"))) > 1
    assert browser.value(cell.format("queue")).isdecimal()
    origin = address.split("/run/")[0] + "/"
    assert len([each for each in browser.addresses if "/flow?part=1" in each]) >= 1
    assert [each for each in browser.addresses if not each.startswith((origin, "about:", "data:"))] == []
    for width in (1280, 390):
        browser.picture(width, tmp_path / f"flow-{width}.png")
        assert browser.value("document.documentElement.scrollWidth") <= width
