"""The pages in a real browser: scripts run under the content policy, and draw; keys reach each piece of a lane."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.browser import CHROMIUM, Browser, viewed

from rolemesh_recorder.node_record import NodeFile
from rolemesh_recorder.usage import Usage, node_file
from rolemesh_report.writing import write_report

from .test_server import T, write_run


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
def test_scripts_draw_lanes_and_curves_without_a_complaint_and_keys_choose_pieces(tmp_path: Path) -> None:
    browser = Browser(tmp_path / "profile")
    piece = "document.getElementById('piece').textContent"
    try:
        run = write_run(tmp_path / "run", ended=False)
        with (run / "events.jsonl").open("a") as events:
            up = {"role": "source", "rank": 0, "generation": 0, "pid": 7, "node": "n1"}
            events.write(json.dumps({"seq": 9, "epoch": 1, "time": T / 1e6, "kind": "rank_up", "data": up}) + "\n")
        file = NodeFile(node_file(run, "n1"), 10_000)
        for at in range(2):
            file.append(Usage(T + at * 500_000, 500_000, 1.25 + at / 4, 2.0, 3 * 10**9, 16 * 10**9, 600_000))
        with (run / "metrics.jsonl").open("a") as metrics:
            rest: dict[str, object] = {"operators": {}, "roles": {}, "staleness": {}, "records": {}}
            metrics.write(json.dumps({"step": 10, "steps": 1, "time": 10.0, "loss": None, **rest}) + "\n")
        with viewed(run) as address:
            browser.ask("Page.navigate", url=re.sub("/[a-z]+[?]", "/metrics?", address))
            browser.until("document.querySelector('[data-name=loss][data-ready]') !== null")
            curve = browser.value("document.querySelector('[data-name=loss] .plot').ariaLabel")
            assert curve == "0.1 at the end, from 0.1 to 1"
            browser.value("document.getElementById('with').value = 'other'")
            browser.value("document.getElementById('controls').dispatchEvent(new Event('change'))")
            said = "0.1 at the end, from 0.1 to 1; 1 value not finite; not shown: other"
            browser.until(f"document.querySelector('.said').textContent === {said!r}")
            browser.ask("Page.navigate", url=re.sub("/[a-z]+[?]", "/time?", address))
            browser.until("document.querySelector('#lanes[data-ready]') !== null")
            marks = browser.value("[...document.querySelectorAll('#marks li')].map(each => each.textContent).join('|')")
            assert marks.startswith("at 200.0 ms sink/0: <script>alert(1)</script>"), "the failure, as text"
            browser.value("document.querySelector('[data-zoom=\"0.5\"]').click()")
            browser.value("document.getElementById('lanes').focus()")
            for keys, said in (
                ("ArrowDown ArrowRight ArrowRight", "source/0: computes source.make  · step 3 · 60.00 ms, at 300.0 ms"),
                ("ArrowDown", "source/1: computes source.make  · step 3 · 60.00 ms, at 300.0 ms"),
                ("ArrowDown", "sink/0: waits for a value sink.take batch · step 3 · 60.00 ms, at 300.0 ms"),
                ("End", "sink/0: waits for a value sink.take batch · step 7 · 60.00 ms, at 700.0 ms"),
                ("ArrowRight", "sink/0: computes sink.take  · step 7 · 40.00 ms, at 760.0 ms"),  # beyond the window
                ("Home ArrowLeft", "sink/0: computes sink.take  · step 4 · 40.00 ms, at 460.0 ms"),
                ("ArrowDown Home", "n1: cores 1.25 of 2 · 500.0 ms, at 0 s"),
                ("ArrowRight", "n1: cores 1.5 of 2 · 500.0 ms, at 500.0 ms"),
                ("ArrowDown", "n1: memory 3 GB of 16 GB · 500.0 ms, at 500.0 ms"),
                ("ArrowDown", "n1: network 1.2 MB/s, most 1.2 MB/s · 500.0 ms, at 500.0 ms"),
                (
                    "ArrowUp ArrowUp ArrowUp",
                    "sink/0: waits for a value sink.take batch · step 5 · 60.00 ms, at 500.0 ms",
                ),
                ("Escape", "\u00a0"),
            ):
                for key in keys.split():
                    browser.key(key)
                browser.until(f"{piece} === {said!r}")
            assert browser.complaints == []
    finally:
        browser.close()


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
def test_a_report_is_as_wide_as_a_telephone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ended=False)
    failed = {"failure": {"role": "sink", "rank": 0, "message": "gone", "node": "f" * 56}}
    with (run / "events.jsonl").open("a") as events:
        events.write(json.dumps({"seq": 9, "epoch": 1, "time": T / 1e6, "kind": "failure", "data": failed}) + "\n")
    write_report(run, tmp_path / "report.html")
    browser = Browser(tmp_path / "profile")
    try:
        browser.emulate(390)
        browser.ask("Page.navigate", url=(tmp_path / "report.html").as_uri())
        browser.until("document.readyState === 'complete' && document.querySelector('h1') !== null")
        assert browser.value("document.documentElement.scrollWidth") == 390
    finally:
        browser.close()
