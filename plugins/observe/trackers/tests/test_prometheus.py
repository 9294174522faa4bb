"""Prometheus's own parser reads over HTTP what the observer serves."""

from __future__ import annotations

import json
import math
import socket
import struct
import threading
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.waiting import HANG_S, until

from rolemesh.api.observer import Event, JobStatus, RankStatus, RunInfo, StepMetrics
from rolemesh.runs.jsonl import metrics_line
from rolemesh.runs.run import METRICS_FILE
from rolemesh_prometheus import PrometheusObserver, PrometheusOptions, server


def started(folder: Path, port: int = 0, host: str = "127.0.0.1", run: str = "") -> PrometheusObserver:
    observer = PrometheusObserver(PrometheusOptions(interval_s=0, port=port, host=host, run=run))
    observer.job_started(RunInfo("grpo", str(folder), 4, {"a": 2}, ()))
    return observer


def scraped(folder: Path, host: str = "localhost:1") -> dict[tuple[str, ...], float]:
    [target] = json.loads((folder / "prometheus.json").read_text())
    path = target["labels"]["__metrics_path__"]
    request = Request(f"http://{target['targets'][0]}{path}", headers={"Host": host})
    with urlopen(request, timeout=HANG_S) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (
            sample.name,
            *(value for label, value in sorted(sample.labels.items()) if label != "rolemesh_job"),
        ): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_scrape_has_the_newest_values_and_the_state(tmp_path: Path) -> None:
    observer = started(tmp_path)
    for step, reward in enumerate((0.25, 0.5)):
        observer.steps_finished((StepMetrics(step, 1, 0.0, {"reward": reward, "eval/loss": math.nan}),))
    observer.event(Event(1, 1, 0.0, "recovered", {"number": 2, "restarted": ["a/0"], "seconds": 0.7, "at": 3.0}))
    ranks = tuple(RankStatus("a", n, "node", 1, state, 0) for n, state in enumerate(("running", "starting")))
    observer.status(JobStatus("grpo", "running", 1, 1, 4, 0.0, 1, "node", ranks=ranks))
    found = scraped(tmp_path)
    assert found["rolemesh_metric", "reward"] == 0.5
    assert math.isnan(found["rolemesh_metric", "eval/loss"])
    assert found["rolemesh_step",] == 1
    assert found["rolemesh_events_total", "recovered"] == 1
    assert found["rolemesh_state", "running"] == 1
    assert found["rolemesh_ranks", "a", "running"] == found["rolemesh_ranks", "a", "starting"] == 1
    assert found["rolemesh_ranks_wanted", "a"] == 2
    with pytest.raises(HTTPError, match="421"):  # a web site whose name leads here
        scraped(tmp_path, "evil.example")
    observer.job_ended({"status": "done"})


@pytest.mark.parametrize("name", ["first", "my run/é"])
def test_a_job_that_has_the_port_of_an_earlier_one_is_not_scraped_as_that(tmp_path: Path, name: str) -> None:
    killed, third = tmp_path / "killed", tmp_path / "third"
    killed.mkdir()
    third.mkdir()
    first = started(killed, run=name)
    assert scraped(killed)["rolemesh_ranks_wanted", "a"] == 2
    [target] = left = json.loads((killed / "prometheus.json").read_text())
    first.job_ended({"status": "done"})
    assert json.loads((killed / "prometheus.json").read_text()) == []
    (killed / "prometheus.json").write_text(json.dumps(left))  # as after a SIGKILL of the master
    second = started(third, int(target["targets"][0].rpartition(":")[2]), run="second")
    assert scraped(third)["rolemesh_ranks_wanted", "a"] == 2
    with pytest.raises(HTTPError, match="404"):
        scraped(killed)
    second.job_ended({"status": "done"})


def test_a_restarted_master_shows_the_newest_values_before_its_first_line(tmp_path: Path) -> None:
    values = {"reward": 0.0, "eval": 7.0}, {"reward": 0.25}
    lines = [StepMetrics(step, 1, 1.0 + step, each) for step, each in enumerate(values)]
    first = started(tmp_path)
    first.steps_finished(tuple(lines))
    (tmp_path / METRICS_FILE).write_bytes(b"".join(metrics_line(line)[1] for line in lines))
    first.job_ended({"status": "interrupted"})
    second = started(tmp_path)
    found = scraped(tmp_path)
    assert [found["rolemesh_metric", name] for name in ("eval", "reward")] == [7.0, 0.25]
    assert found["rolemesh_step",] == 1
    second.job_ended({"status": "done"})


CHROME = {"User-Agent": "Mozilla/5.0", "Accept-Language": "en"}


@pytest.mark.parametrize(
    ("bound", "host", "headers", "status"),
    [
        ("127.0.0.1", "jobs.example:9400", {}, 421),
        ("127.0.0.1", "127.0.0.1.evil.example", {}, 421),
        ("0.0.0.0", "jobs.example:9400", {"User-Agent": "Prometheus/3.5.0", "Accept-Encoding": "gzip"}, 200),
        ("0.0.0.0", "evil.example:9400", CHROME, 421),
        ("0.0.0.0", "evil.example", {"Accept-Language": "", "User-Agent": "Prometheus"}, 421),
        ("0.0.0.0", "[", CHROME, 421),
        ("0.0.0.0", "192.0.2.7:9400", CHROME, 200),
        ("0.0.0.0", "LOCALHOST:9400", CHROME, 200),
        ("0.0.0.0", f"{socket.gethostname()}:9400", CHROME, 200),
    ],
)
def test_no_web_site_can_let_its_name_lead_here_and_scrapers_may_come_by_any_name(
    bound: str, host: str, headers: dict[str, str], status: int
) -> None:
    served = server.Server(bound, 0, "grpo", {"a": 2})
    try:
        urlopen(
            Request(f"http://127.0.0.1:{served.port}/metrics", headers={"Host": host} | headers), timeout=HANG_S
        ).close()
        found = 200
    except HTTPError as error:
        found = error.code
        error.close()
    finally:
        served.close()
    assert found == status


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_an_address_of_ipv6_can_be_scraped_as_the_target_says(tmp_path: Path) -> None:
    observer = started(tmp_path, host="::1")
    assert scraped(tmp_path)["rolemesh_ranks_wanted", "a"] == 2
    observer.job_ended({"status": "done"})


def test_a_client_that_goes_or_is_silent_costs_no_thread_and_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "SILENT_S", 0.1)
    observer = started(tmp_path)
    [target] = json.loads((tmp_path / "prometheus.json").read_text())
    address = "127.0.0.1", int(target["targets"][0].rpartition(":")[2])
    before = threading.active_count()
    with socket.create_connection(address, timeout=HANG_S) as silent:
        assert silent.recv(1) == b""
    gone = socket.create_connection(address)
    gone.sendall(b"GET /me")
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.close()  # with a reset
    assert scraped(tmp_path)["rolemesh_ranks_wanted", "a"] == 2
    until(lambda: threading.active_count() <= before, what="the threads of clients are gone")
    assert capfd.readouterr().err == ""
    observer.job_ended({"status": "done"})


def test_a_port_that_is_taken_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        observer = started(tmp_path, taken.getsockname()[1])
        assert observer.event(Event(9, 1, 0.0, "rank_up", {})).startswith("gets no metrics through")
        observer.job_ended({"status": "done"})
    assert "the tracker prometheus gets no metrics through" in caplog.messages[0]
