"""The pages of a job that runs, in a real browser: they change without a reload, act on the job, and note its end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.browser import CHROMIUM, Browser, viewed
from tests.waiting import HANG_S

pytestmark = [pytest.mark.soak, pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")]
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
        time.sleep(0.00002 * batch.rows)  # the bottleneck also on a busy machine
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
  sink: {use: "roles:Sink", resources: {cpu: 0.1}, world_size: {min: 1, max: 2}}
failover: [{use: process}]
plugins: {extensions: [{use: recorder, options: {rows: {source.make: 1/20000}}}]}
"""


@contextmanager
def running(folder: Path) -> Iterator[Path]:
    """Run the job of `folder` until the end of the block; its sink has a record."""
    command = [str(Path(sys.executable).with_name("rolemesh")), "run", "job.yaml", "--backend", "local"]
    with (folder / "log").open("wb") as log:
        job = subprocess.Popen([*command, "--runs-dir", "runs"], cwd=folder, stdout=log, stderr=log)
    try:
        end = time.monotonic() + HANG_S
        while not list(folder.glob("runs/live/record/sink-0/*.jsonl")):
            assert job.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < end, "the sink has no record"
            time.sleep(0.2)
        yield folder / "runs/live"
    finally:
        job.terminate()
        job.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    with running(folder) as run, viewed(run) as address:
        yield address.replace("/overview", "/flow")


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
    browser.value("window.same = 'page'; document.querySelector('.node').focus()")
    texts = "[...document.querySelectorAll('#edges td.number')].map(cell => cell.textContent).join('|')"
    before = browser.value(texts)
    after = browser.until(f"(({texts}) !== {json.dumps(before)}) && ({texts})")
    assert (browser.value("window.same"), len(before.split("|"))) == ("page", len(after.split("|")))
    assert re.match("source.make: 2 ranks · .*computes", browser.value("document.activeElement.ariaLabel"))
    assert float(browser.value(cell.format("values_s"))) > 1
    assert browser.value(cell.format("queue")).isdecimal()
    origin = address.split("/run/")[0] + "/"
    asked = [each for each in browser.addresses if each.startswith(origin) and "/static/" not in each]
    assert [each for each in asked if "/live?page=flow" in each] == asked[-1:], "one stream, and no request after it"
    assert [each for each in browser.addresses if not each.startswith((origin, "about:", "data:"))] == []
    for width in (1280, 390):
        browser.emulate(width)
        browser.picture(tmp_path / f"flow-{width}.png")
        assert browser.value("document.documentElement.scrollWidth") <= width


def test_a_button_applies_a_prediction_and_the_page_compares_it_with_what_is_measured(
    address: str, browser: Browser
) -> None:
    flow = address.partition("?")[0]
    said = "document.querySelector('#predictions').innerText"

    def scale(ranks: int) -> str:
        """Follow the button of a prediction, or the form; confirm; return the answer."""
        button = f"document.querySelector('.prediction a[href$=\"role=sink&ranks={ranks}\"]')"
        if ranks != 2:  # a prediction of fewer ranks has a button only if steps stay as long
            browser.ask("Page.navigate", url=f"{flow.removesuffix('/flow')}/act?do=scale&role=sink&ranks={ranks}")
        else:
            browser.until(f"{button} !== null")
            browser.value(f"{button}.click()")
        browser.until("document.querySelector('input[name=sure]') !== null")
        browser.value("document.querySelector('form button').click()")
        assert browser.value("document.title").startswith("Confirm"), "the box is not ticked"
        browser.value("document.querySelector('input[name=sure]').click()")
        browser.value("document.querySelector('form button').click()")
        browser.until("document.title.startsWith('Asked')")
        answer = str(browser.value("document.querySelector('main').innerText"))
        browser.ask("Page.navigate", url=flow)
        return answer

    browser.ask("Page.navigate", url=address)
    browser.until(f"/sink 2 → 3 ranks: .* no button: role sink may have from 1 to 2 ranks/.test({said})")
    assert "sink (1 to 2 ranks)" in browser.value("document.querySelector('select[name=role]').innerText")
    assert "role sink may have from 1 to 2 ranks" in scale(3)
    assert "sink → 1 rank: asked" in scale(1)
    browser.until(f"/sink 1 → 2 ranks: steps \\d+% shorter/.test({said})")
    assert "sink → 2 ranks: asked" in scale(2)
    both = r"/sink 1 → 2 ranks at .* UTC: predicted steps (\d+)% shorter; measured steps (\d+)% shorter/.exec("
    browser.until(f"(found => found && Math.abs(found[1] - found[2]) <= 10)({both}{said}))")


def test_the_page_of_logs_follows_the_log_until_the_reader_scrolls_up(
    address: str, folder: Path, browser: Browser
) -> None:
    path = folder / "runs/live/logs/sink-0.log"

    def write(text: str, lines: int = 1) -> None:
        with path.open("a") as log:
            log.write(f"{text}\n" * lines)

    write("first", 2000)
    browser.ask("Page.navigate", url=address)
    browser.until("document.readyState === 'complete'")
    origin = "/".join(address.split("/")[:3])
    browser.ask("Page.navigate", url=f"{origin}/run/live/logs?file=sink-0.log")
    log, newer = "document.querySelector('#log')", "document.querySelector('#newer')"
    at_end = f"{log}.scrollTop > 0 && {log}.scrollHeight - {log}.scrollTop - {log}.clientHeight < 2"
    browser.until(at_end)
    write("second")
    browser.until(f"{log}.textContent.endsWith('second\\n') && {at_end} && !{newer}.checkVisibility()")
    browser.value(f"{log}.scrollTop = 100")
    write("third")
    browser.until(f"{newer}.checkVisibility()")
    assert browser.value(f"[{log}.scrollTop, {log}.textContent.endsWith('second\\n')]") == [100, True]
    browser.value(f"{newer}.click()")
    assert browser.value(f"{log}.textContent.endsWith('third\\n') && {at_end} && !{newer}.checkVisibility()")
    browser.value(f"getSelection().selectAllChildren({log})")
    write("fourth")
    browser.until(f"{newer}.checkVisibility()")
    browser.value("getSelection().removeAllRanges()")
    browser.value(f"{log}.scrollTop = 0")
    browser.until(f"{log}.scrollTop === 0")
    browser.value(f"{log}.scrollTop = {log}.scrollHeight")
    browser.until(f"{log}.textContent.endsWith('fourth\\n') && {at_end} && !{newer}.checkVisibility()")
    path.with_name("sink-7.log").write_text("another")
    browser.until("[...document.querySelector('#files').options].some(each => each.value === 'sink-7.log')")
    assert browser.complaints == []


def test_lists_of_events_failures_ranks_and_rows_follow_the_job_and_do_not_disturb_the_reader(
    address: str, folder: Path, browser: Browser
) -> None:
    origin = "/".join(address.split("/")[:3])
    sink = "document.querySelector('[data-key=\"sink/0\"]')"

    def kill() -> None:
        told = [json.loads(line) for line in (folder / "runs/live/events.jsonl").read_text().splitlines()]
        ups = [each["data"] for each in told if each["kind"] == "rank_up"]
        os.kill([each["pid"] for each in ups if (each["role"], each["rank"]) == ("sink", 0)][-1], 9)

    def show(page: str) -> None:
        browser.ask("Page.navigate", url=f"{origin}/run/live/{page}")
        browser.until(f"location.href.endsWith('/{page}') && document.readyState === 'complete'")
        browser.value("window.same = 'page'")

    browser.ask("Page.navigate", url=address)
    browser.until("document.readyState === 'complete'")
    browser.ask("Emulation.setDeviceMetricsOverride", width=1280, height=300, deviceScaleFactor=1, mobile=False)
    show("failures")
    assert "Nothing has failed" in browser.value("document.body.innerText")
    kill()
    browser.until("document.querySelectorAll('tr[data-key]').length === 1")
    assert browser.value("window.same") == "page"
    show("placement")
    browser.until(f"{sink}.innerText === 'sink/0 restarted 1×'")
    browser.value(f"window.node = {sink}; window.marked = getSelection(); marked.selectAllChildren(node)")
    kill()
    browser.until(f"{sink}.innerText === 'sink/0 restarted 2×'")
    assert browser.value(f"same === 'page' && node === {sink} && marked.anchorNode === node")
    show("events")
    shown = "[...document.querySelectorAll('tr[data-key]')]"
    number = browser.value(f"{shown}.length")
    browser.value("document.querySelector('input[name=find]').focus({preventScroll: true})")
    browser.ask("Input.insertText", text="typed")
    browser.value(f"{shown}.at(-3).scrollIntoView(); window.row = {shown}.at(-2)")
    assert browser.value("window.was = row.getBoundingClientRect().top; scrollY > 0")
    kill()
    browser.until(f"{shown}.length > {number + 3} && document.querySelector('option[value=recovered]') !== null")
    assert browser.value("Math.abs(row.getBoundingClientRect().top - was)") <= 1
    assert browser.value("[same, document.activeElement.value, row.isConnected]") == ["page", "typed", True]
    show("rows?step=1")
    assert not browser.value("document.getElementById('newer').checkVisibility()"), "the step has all of its rows"
    show("rows")
    step = browser.until("document.querySelector('#steps tbody tr').dataset.key")
    browser.until("document.getElementById('newer').checkVisibility()")
    browser.until(f"Number(document.querySelector('#steps tbody tr').dataset.key) > {step}")
    assert browser.value("window.same") == "page"
    browser.value("document.querySelector('#newer').click()")
    browser.until("window.same === undefined && document.querySelector('article') !== null")
    assert browser.complaints == []


def test_a_page_notes_the_end_of_the_job_a_new_run_and_the_end_of_the_viewer(folder: Path, browser: Browser) -> None:
    state = "document.querySelector('#status').innerText"
    told = "[...document.querySelectorAll('[role=alert] p')].filter(each => !each.hidden).map(each => each.id).join()"
    with running(folder) as run:
        server = viewed(run)
        address = server.__enter__()
        origin = "/".join(address.split("/")[:3])
        browser.ask("Page.navigate", url=address)
        browser.until("document.readyState === 'complete'")
        assert "token" not in browser.value("location.href")
        browser.ask("Page.navigate", url=f"{origin}/run/live/time")
        browser.until(f"/running/.test({state})")
    browser.until(f"/interrupted|failed|died/.test({state})")
    assert browser.value(told) == ""
    with running(folder):
        browser.until(f"/running/.test({state})")  # the page of an ended job asks now and then
        browser.until("/of \\d+(\\.\\d+)? s/.test(document.getElementById('range').textContent)")
        server.__exit__(None, None, None)
        browser.until(f"{told} === 'silent'")
        with viewed(run, "--port", origin.rpartition(":")[2]) as again:
            browser.until(f"{told} === 'refused'")  # the new viewer does not know the old cookie
            browser.ask("Target.createTarget", url=again, background=True)
            browser.until(f"{told} === ''")  # another page has brought the new one
            assert browser.value("document.title").startswith("Time")
            browser.until(f"/running/.test({state})")
            browser.ask("Page.enable")
            browser.ask("Page.addScriptToEvaluateOnNewDocument", source="delete window.EventSource")
            browser.ask("Page.navigate", url=f"{origin}/run/live/flow")
            browser.until(f"{told} === 'still'")
            assert "running" in browser.value(state)
