"""Metrics and log records as messages of OTLP (opentelemetry-proto 1). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs, SeverityNumber
from opentelemetry.proto.metrics.v1.metrics_pb2 import Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from rolemesh_tracking import Line, Note, distinct

__all__ = ["log_records", "metric_name", "metrics"]

_SCOPE = InstrumentationScope(name="rolemesh")
_OTHER = re.compile(r"[^A-Za-z0-9_.\-/]")
_ALARMING = re.compile(r"fail|lost|died|hang|exhausted|rolled_back|warning|damaged")


def metric_name(name: str) -> str:
    """Return the name of the gauge of a metric: ``rolemesh.NAME``, with ``_`` for what OpenTelemetry does not allow.

    A changed name ends as `distinct` says. So does ``step``, which is the gauge of the steps.
    """
    return f"rolemesh.{distinct(name, _OTHER.sub('_', name) if name != 'step' else 'step_')}"


def metrics(resource: Mapping[str, object], lines: Sequence[Line]) -> ExportMetricsServiceRequest:
    """Return a gauge for each metric with a data point for each step, and the gauge ``rolemesh.step``."""
    points: dict[str, list[NumberDataPoint]] = {"rolemesh.step": []}
    for line in lines:
        at = _nanoseconds(line.time)
        points["rolemesh.step"].append(NumberDataPoint(time_unix_nano=at, as_int=line.step))
        for name, value in line.values.items():
            points.setdefault(metric_name(name), []).append(NumberDataPoint(time_unix_nano=at, as_double=value))
    found = [Metric(name=name, gauge=Gauge(data_points=each)) for name, each in points.items()]
    scope = ScopeMetrics(scope=_SCOPE, metrics=found)
    return ExportMetricsServiceRequest(
        resource_metrics=[ResourceMetrics(resource=_resource(resource), scope_metrics=[scope])]
    )


def log_records(
    resource: Mapping[str, object], notes: Sequence[Note], config: Mapping[str, object]
) -> ExportLogsServiceRequest:
    """Return a record for each note, and before them one with the configuration if there is any."""
    records = [
        LogRecord(
            time_unix_nano=_nanoseconds(note.time),
            severity_number=(
                SeverityNumber.SEVERITY_NUMBER_WARN
                if _ALARMING.search(note.kind)
                else SeverityNumber.SEVERITY_NUMBER_INFO
            ),
            body=AnyValue(string_value=_text(note.text)),
            attributes=_pairs({"rolemesh.event": note.kind, "rolemesh.seq": note.seq, "rolemesh.step": note.step}),
        )
        for note in notes
    ]
    if config:
        severity = SeverityNumber.SEVERITY_NUMBER_INFO
        body = AnyValue(string_value="job file")
        records.insert(0, LogRecord(severity_number=severity, body=body, attributes=_pairs(config)))
    scope = ScopeLogs(scope=_SCOPE, log_records=records)
    return ExportLogsServiceRequest(resource_logs=[ResourceLogs(resource=_resource(resource), scope_logs=[scope])])


def _resource(values: Mapping[str, object]) -> Resource:
    return Resource(attributes=_pairs(values))


def _pairs(values: Mapping[str, object]) -> Iterable[KeyValue]:
    return [KeyValue(key=_text(key), value=_any(value)) for key, value in values.items()]


def _any(value: object) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and abs(value) < 1 << 63:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(string_value=_text(str(value)))


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _nanoseconds(at: float) -> int:
    """Return a time in seconds since 1970 as the protocol's unsigned number."""
    return max(0, min(int(at * 1e9), (1 << 64) - 1))
