"""A collector decodes what the observer posted, and is away for a while."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from rolemesh.api.observer import Event, RunInfo, StepMetrics
from rolemesh_otel import OtelObserver, OtelOptions
from rolemesh_otel.variables import target, without_login


class Collector(ThreadingHTTPServer):
    """A collector. It answers with `status` and one of `answers`, by path, and keeps what it accepted."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.answers = 200, dict[str, bytes]()
        self.accepted: list[tuple[str, str | None, bytes]] = []

    def points(self) -> dict[str, list[tuple[int, float]]]:
        found: dict[str, list[tuple[int, float]]] = {}
        for path, _, body in self.accepted:
            if path == "/v1/metrics":
                [resource] = ExportMetricsServiceRequest.FromString(body).resource_metrics
                for metric in resource.scope_metrics[0].metrics:
                    points = [(p.time_unix_nano, p.as_double or p.as_int) for p in metric.gauge.data_points]
                    found.setdefault(metric.name, []).extend(points)
        return found


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        if self.server.status == 200:
            self.server.accepted.append((self.path, self.headers["X-Key"], body))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.answers.get(self.path, b""))

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as found:
        thread = Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def started(collector: Collector, folder: Path) -> OtelObserver:
    url = f"http://127.0.0.1:{collector.server_port}/"
    observer = OtelObserver(OtelOptions(endpoint=url, headers={"X-Key": "k"}, interval_s=0))
    observer.job_started(RunInfo("grpo", str(folder), 4, {}, ()))
    return observer


def line(step: int, **values: float) -> StepMetrics:
    return StepMetrics(step, 1, float(step), values)


def test_a_collector_gets_points_and_records(collector: Collector, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: grpo\n")
    observer = started(collector, tmp_path)
    own = StepMetrics(3, 1, 3.0, {"step": 7.0})
    observer.steps_finished((line(1, reward=0.5), line(2, größe=math.nan, gr__e=1.0), own))
    observer.event(Event(1, 1, 1.0, "recovered", {"number": 2, "restarted": ["a/0"], "seconds": 0.7, "at": 3.0}))
    found = collector.points()
    assert found["rolemesh.reward"] == [(10**9, 0.5)]
    assert math.isnan(found["rolemesh.gr__e-5bd3a989"][0][1])
    assert [value for _, value in found["rolemesh.gr__e"]] == [1.0]
    assert len(found) == 5, "a metric of the name step is not the gauge of the steps"
    assert found["rolemesh.step"] == [(10**9, 1), (2 * 10**9, 2), (3 * 10**9, 3)]
    bodies = [body for path, _, body in collector.accepted if path == "/v1/logs"]
    records = [
        r for b in bodies for r in ExportLogsServiceRequest.FromString(b).resource_logs[0].scope_logs[0].log_records
    ]
    assert [record.body.string_value.split(":")[0] for record in records] == ["job file", "recovery 2"]
    assert {key for _, key, _ in collector.accepted} == {"k"}


def test_a_collector_that_was_away_gets_each_step_once(collector: Collector, tmp_path: Path) -> None:
    observer = started(collector, tmp_path)
    collector.status = 503
    observer.steps_finished((line(0, reward=0.5),))
    collector.status = 200
    observer.job_ended({"status": "done"})
    assert collector.points()["rolemesh.step"] == [(0, 0)]


def test_a_message_that_a_collector_cannot_read_is_not_repeated(
    collector: Collector, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    observer = started(collector, tmp_path)
    collector.status = 400
    observer.steps_finished((line(0, reward=0.5),))
    collector.status = 200
    observer.steps_finished((line(1, reward=0.5),))
    assert collector.points()["rolemesh.step"] == [(10**9, 1)]
    assert "the tracker otel leaves out metrics" in caplog.text


@pytest.mark.parametrize("rejected", [0, 2])
def test_points_that_a_collector_rejects_are_named_once_and_not_repeated(
    collector: Collector, tmp_path: Path, caplog: pytest.LogCaptureFixture, rejected: int
) -> None:
    partial = ExportMetricsPartialSuccess(rejected_data_points=rejected, error_message="out of order")
    collector.answers["/v1/metrics"] = ExportMetricsServiceResponse(partial_success=partial).SerializeToString()
    collector.answers["/v1/logs"] = b"OK"
    observer = started(collector, tmp_path)
    observer.event(Event(1, 1, 1.0, "recovered", {"number": 2, "restarted": ["a/0"], "seconds": 0.7, "at": 3.0}))
    for step in range(2):
        observer.steps_finished((line(step, reward=0.5),))
    observer.job_ended({"status": "done"})
    paths = [path for path, _, _ in collector.accepted]
    assert (paths.count("/v1/metrics"), paths.count("/v1/logs")) == (2, 1)
    assert caplog.text.count("has rejected 2 of the points or records: out of order") == (rejected > 0)


def test_records_follow_points_that_are_rejected(collector: Collector, tmp_path: Path) -> None:
    """In the same attempt, as after a time without the collector."""
    partial = ExportMetricsPartialSuccess(rejected_data_points=1)
    collector.answers["/v1/metrics"] = ExportMetricsServiceResponse(partial_success=partial).SerializeToString()
    observer = started(collector, tmp_path)
    collector.status = 503
    observer.steps_finished((line(0, reward=0.5),))
    observer.event(Event(1, 1, 1.0, "recovered", {"number": 2, "restarted": ["a/0"], "seconds": 0.7, "at": 3.0}))
    collector.status = 200
    observer.job_ended({"status": "done"})
    assert {path for path, _, _ in collector.accepted} == {"/v1/metrics", "/v1/logs"}


def test_the_variables_of_opentelemetry_hold_without_options(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{collector.server_port}"
    told = {
        "EXPORTER_OTLP_ENDPOINT": f"{url}/base/",
        "EXPORTER_OTLP_METRICS_ENDPOINT": f"{url}/v1/metrics",
        "EXPORTER_OTLP_HEADERS": "X-Key=a",
        "EXPORTER_OTLP_METRICS_HEADERS": "X-Key=b%20c",
        "EXPORTER_OTLP_COMPRESSION": "gzip",
        "SERVICE_NAME": "mine",
        "RESOURCE_ATTRIBUTES": "team=t,service.name=no",
    }
    for name, value in told.items():
        monkeypatch.setenv(f"OTEL_{name}", value)
    observer = OtelObserver(OtelOptions(interval_s=0))
    observer.job_started(RunInfo("grpo", str(tmp_path), 4, {}, ()))
    observer.steps_finished((line(1, reward=0.5),))
    observer.event(Event(1, 1, 1.0, "recovered", {"number": 2, "restarted": ["a/0"], "seconds": 0.7, "at": 3.0}))
    assert [(path, key) for path, key, _ in collector.accepted] == [("/v1/metrics", "b c"), ("/base/v1/logs", "a")]
    [found] = ExportMetricsServiceRequest.FromString(collector.accepted[0][2]).resource_metrics
    attributes = {pair.key: pair.value.string_value for pair in found.resource.attributes}
    assert (attributes["service.name"], attributes["team"]) == ("mine", "t")


def test_variables_for_one_signal_win_and_some_switch_it_off() -> None:
    both = {"OTEL_EXPORTER_OTLP_TIMEOUT": "3000", "OTEL_EXPORTER_OTLP_LOGS_TIMEOUT": "500"}
    assert [each.timeout_s for s in ("metrics", "logs") if (each := target(s, both, "http://c"))] == [3.0, 0.5]
    off = {"OTEL_SDK_DISABLED": "true"}, {"OTEL_LOGS_EXPORTER": "none"}
    assert [target("logs", each, "http://c") for each in off] == [None, None]
    with pytest.raises(ValueError, match="grpc, and this observer speaks http/protobuf only"):
        target("logs", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http://c")


def test_the_login_of_a_url_is_a_header() -> None:
    assert without_login("https://u:p%40%2F@c:4318/v1/logs") == ("https://c:4318/v1/logs", "Basic dTpwQC8=")
    assert without_login("http://[::1]:4318/v1/logs") == ("http://[::1]:4318/v1/logs", "")
