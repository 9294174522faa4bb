"""The observer `otel`: metrics as gauges and events as log records, by OTLP over HTTP."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

from pydantic import Field, SecretStr

from rolemesh.api.observer import RunInfo
from rolemesh_otel.variables import Signal, Target, resource_attributes, target
from rolemesh_tracking import Cursor, Line, Note, Refused, Tracker, TrackerOptions

__all__ = ["OtelObserver", "OtelOptions"]

LOCAL = "http://localhost:4318"


class OtelOptions(TrackerOptions):
    """Options of the observer `otel`."""

    endpoint: str = Field(
        default="",
        pattern=r"^(https?://.+)?$",
        description="URL of the collector, without `/v1/metrics`; default: `OTEL_EXPORTER_OTLP_ENDPOINT` and its like, "
        f"or {LOCAL}.",
    )
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="HTTP headers, such as a key; default: `OTEL_EXPORTER_OTLP_HEADERS`."
    )
    timeout_s: float | None = Field(
        default=None,
        gt=0,
        le=60,
        description="Seconds until a request counts as failed; default: `OTEL_EXPORTER_OTLP_TIMEOUT` (in ms), or 10.",
    )


class OtelObserver(Tracker):
    """Sends each metric as a gauge with a data point for each step, and events as log records."""

    Options = OtelOptions
    service = "otel"
    client = "opentelemetry.proto"

    def open(self, run: RunInfo, known: Cursor) -> tuple[str, int]:
        """Choose an instance id. The first sending connects."""
        instance = known.run or secrets.token_hex(8)
        own = {
            "service.name": run.name,
            "service.instance.id": instance,
            "rolemesh.run_dir": run.run_dir,
            "rolemesh.backend": run.backend,
        }
        chosen = {"service.name": self.options.run} if self.options.run else {}
        self._resource = own | resource_attributes(os.environ) | chosen
        self._config = {} if known.run else {f"rolemesh.job.{key}": value for key, value in self.config(run).items()}
        return instance, -1

    def send(self, lines: Sequence[Line], notes: Sequence[Note]) -> None:
        """Send. Raises OSError if the collector does not answer, and `Refused` if it refuses the data."""
        from rolemesh_otel.messages import log_records, metrics
        from rolemesh_otel.posting import post

        refused: Refused | None = None
        if lines and (target := self._target("metrics")):
            try:
                post(target, metrics(self._resource, lines))
            except Refused as error:
                refused = error
        if (notes or self._config) and (target := self._target("logs")):
            post(target, log_records(self._resource, notes, self._config))
            self._config = {}
        if refused is not None:
            raise refused

    def close(self, status: str) -> None:
        """The protocol has no end."""

    def _target(self, signal: Signal) -> Target | None:
        """Return where to send, by the options and, without them, by the variables of OpenTelemetry."""
        options = self.options
        variables = {n: v for n, v in os.environ.items() if not (options.endpoint and n.endswith("_PROTOCOL"))}
        found = target(signal, variables, LOCAL)
        if found is None:
            return None
        if options.endpoint:
            found = found._replace(url=f"{options.endpoint.rstrip('/')}/v1/{signal}")
        if options.headers:
            found = found._replace(headers={name: value.get_secret_value() for name, value in options.headers.items()})
        return found if options.timeout_s is None else found._replace(timeout_s=options.timeout_s)
