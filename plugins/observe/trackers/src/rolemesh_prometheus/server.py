"""The HTTP server and its metrics. Importing this module imports the client of Prometheus."""

from __future__ import annotations

import logging
import sys
from collections import Counter as Count
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from rolemesh.api.observer import JobStatus
from rolemesh_console.hosts import host_name, is_own
from rolemesh_tracking import Line

__all__ = ["Server"]

log = logging.getLogger("rolemesh_prometheus.server")

SILENT_S = 10.0
"""Seconds after which the server closes the connection of a client that sends or takes nothing."""


class Server:
    """A server of a job's newest metrics, in a thread that does not keep the process alive. Raises OSError."""

    def __init__(self, host: str, port: int, job: str, roles: Mapping[str, int]) -> None:
        registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"rolemesh_{name}", text, ("rolemesh_job", *labels), registry=registry)

        self._job = job
        self._metric = gauge("metric", "Value of a metric at the newest step", "metric")
        self._step = gauge("step", "Newest step with metrics, from 0")
        self._committed = gauge("committed_step", "Newest step whose state is durable, -1 for none")
        self._persisted = gauge("persisted_step", "Newest step whose state is on disk, -1 for none")
        self._state = gauge("state", "1 for the present state of the job", "state")
        self._ranks = gauge("ranks", "Number of ranks of a role in a state", "role", "state")
        self._wanted = gauge("ranks_wanted", "World size of a role", "role")
        self._events = Counter(
            "rolemesh_events", "Important events of this master, by kind", ("rolemesh_job", "kind"), registry=registry
        )
        for role, size in roles.items():
            self._wanted.labels(job, role).set(size)
        self._server, self._thread = start_http_server(port, host, registry)
        self._server.handle_error = _ignore_gone_clients  # type: ignore[method-assign]
        handler = self._server.RequestHandlerClass
        self._server.RequestHandlerClass = type(handler.__name__, (handler,), {"timeout": SILENT_S})
        local = ip_address(self._server.server_address[0]).is_loopback
        self._server.set_app(_guarded(self._server.get_app(), job, host, local))
        self.port: int = self._server.server_port

    def show(self, lines: Sequence[Line], kinds: Sequence[str]) -> None:
        """Show the newest value of each metric, and count events."""
        newest = {name: value for line in lines for name, value in line.values.items()}
        for name, value in newest.items():
            self._metric.labels(self._job, name).set(value)
        if lines:
            self._step.labels(self._job).set(lines[-1].step)
        for kind in kinds:
            self._events.labels(self._job, kind).inc()

    def state(self, status: JobStatus) -> None:
        """Show the state of the job and of its ranks."""
        self._state.clear()
        self._state.labels(self._job, status.state).set(1)
        self._committed.labels(self._job).set(status.committed)
        self._persisted.labels(self._job).set(status.persisted)
        self._ranks.clear()
        for (role, state), number in Count((rank.role, rank.state) for rank in status.ranks).items():
            self._ranks.labels(self._job, role, state).set(number)

    def close(self) -> None:
        """End the server and its thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _ignore_gone_clients(request: Any, client_address: Any) -> None:
    """Log an error of a request in one line; nothing for a client that has gone, or says nothing."""
    error = sys.exc_info()[1]
    if not isinstance(error, OSError):
        log.error("a request for metrics from %s has failed: %r", client_address, error)


def _guarded(app: Any, job: str, host: str, local: bool) -> Any:
    """Return a WSGI application that refuses names by which a web site may lead browsers here (DNS rebinding).

    It answers 404 to ``/metrics/NAME`` of another job, which has had this port before.

    `local`: it listens on a loopback address, where nobody else needs a name, so it refuses all foreign ones. On
    others, scrapers come by names that nobody knows here, so it refuses those only of browsers.
    """

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        name = host_name(f"//{environ.get('HTTP_HOST', 'localhost')}")
        if is_own(name, [host]) or not (local or _is_of_browser(environ)):
            path = environ["PATH_INFO"].encode("latin-1").decode(errors="replace")  # PEP 3333
            if path.removeprefix("/metrics/") not in (path, job):
                start("404 Not Found", [("Content-Type", "text/plain")])
                return [f"404: this server has the metrics of the job {job}\n".encode()]
            return app({**environ, "PATH_INFO": "/metrics"}, start)
        start("421 Misdirected Request", [("Content-Type", "text/plain")])
        return [b"421: this server answers for addresses, localhost and its host name; see rolemesh-trackers' README\n"]

    return answer


def _is_of_browser(environ: Mapping[str, Any]) -> bool:
    """Return whether a request has what all browsers send, and no scraper does. A page's script cannot leave it out."""
    signs = (
        "HTTP_ACCEPT_LANGUAGE",
        "HTTP_ORIGIN",
        "HTTP_REFERER",
        "HTTP_SEC_FETCH_SITE",
        "HTTP_UPGRADE_INSECURE_REQUESTS",
    )
    return any(sign in environ for sign in signs) or "Mozilla/" in environ.get("HTTP_USER_AGENT", "")
