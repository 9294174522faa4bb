"""The observer `otel`: metrics as gauges and events as log records, by OTLP over HTTP."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from pydantic import Field, SecretStr

from rolemesh.api.observer import RunInfo
from rolemesh_tracking import Cursor, Line, Note, Tracker, TrackerOptions

__all__ = ["OtelObserver", "OtelOptions"]

LOCAL = "http://localhost:4318"


class OtelOptions(TrackerOptions):
    """Options of the observer `otel`."""

    endpoint: str = Field(
        default="",
        pattern=r"^(https?://.+)?$",
        description=f"URL of the collector, without `/v1/metrics`; default: `OTEL_EXPORTER_OTLP_ENDPOINT`, or {LOCAL}.",
    )
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="HTTP headers, such as a key; default: `OTEL_EXPORTER_OTLP_HEADERS`."
    )
    timeout_s: float = Field(default=10.0, gt=0, le=60, description="Seconds until a request counts as failed.")


class OtelObserver(Tracker):
    """Sends each metric as a gauge with a data point for each step, and events as log records."""

    Options = OtelOptions
    service = "otel"

    def open(self, run: RunInfo, known: Cursor) -> tuple[str, int]:
        """Choose an instance id. The first sending connects."""
        instance = known.run or secrets.token_hex(8)
        self._resource = {
            "service.name": self.name(run),
            "service.instance.id": instance,
            "rolemesh.run_dir": run.run_dir,
            "rolemesh.backend": run.backend,
        }
        self._config = {} if known.run else {f"rolemesh.job.{key}": value for key, value in self.config(run).items()}
        return instance, -1

    def send(self, lines: Sequence[Line], notes: Sequence[Note]) -> None:
        """Send. Raises OSError if the collector does not answer, and `Refused` if it refuses the data."""
        from rolemesh_otel.messages import log_records, metrics
        from rolemesh_otel.posting import post

        base = self.options.endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or LOCAL
        base, headers = base.rstrip("/"), self._headers()
        if lines:
            post(f"{base}/v1/metrics", metrics(self._resource, lines), headers, self.options.timeout_s)
        if notes or self._config:
            post(f"{base}/v1/logs", log_records(self._resource, notes, self._config), headers, self.options.timeout_s)
            self._config = {}

    def close(self, status: str) -> None:
        """The protocol has no end."""

    def _headers(self) -> Mapping[str, str]:
        if self.options.headers:
            return {name: value.get_secret_value() for name, value in self.options.headers.items()}
        told = os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",")
        pairs = (each.partition("=") for each in told if "=" in each)
        return {name.strip(): unquote(value.strip()) for name, _, value in pairs}
