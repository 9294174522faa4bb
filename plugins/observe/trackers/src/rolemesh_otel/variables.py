"""The variables of OpenTelemetry for exporters (specification 1.40, "OpenTelemetry Protocol Exporter"). Pure."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

__all__ = ["Signal", "Target", "resource_attributes", "target", "without_login"]

Signal: TypeAlias = Literal["metrics", "logs"]
TIMEOUT_S = 10.0


class Target(NamedTuple):
    """A URL, and how to send to it. `certificate`, `client` and `key` are files with PEM data, "" for none."""

    url: str
    headers: dict[str, str]
    timeout_s: float
    gzip: bool
    certificate: str
    client: str
    key: str


def target(signal: Signal, variables: Mapping[str, str], local: str) -> Target | None:
    """Return the target of a signal; None if the variables switch it off. `local` is the default base of URLs.

    A variable for one signal wins over that for all. Raises ValueError for a protocol other than ``http/protobuf``.
    """

    def told(name: str) -> str:
        both = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", f"OTEL_EXPORTER_OTLP_{name}")
        return next((variables[each] for each in both if variables.get(each)), "")

    exporter = variables.get(f"OTEL_{signal.upper()}_EXPORTER", "")
    if variables.get("OTEL_SDK_DISABLED", "").lower() == "true" or exporter == "none":
        return None
    if (protocol := told("PROTOCOL")) not in ("", "http/protobuf"):
        what = f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}, and this observer speaks http/protobuf only"
        raise ValueError(f"{what}; set its option endpoint to a port for HTTP, such as {local}")
    base = variables.get("OTEL_EXPORTER_OTLP_ENDPOINT") or local
    url = variables.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT") or f"{base.rstrip('/')}/v1/{signal}"
    timeout_s = float(told("TIMEOUT") or 1000 * TIMEOUT_S) / 1000
    files = (told(name) for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"))
    return Target(url, _pairs(told("HEADERS")), timeout_s, told("COMPRESSION") == "gzip", *files)


def without_login(url: str) -> tuple[str, str]:
    """Return the URL without its ``user:password@``, and the header Authorization for these; "" if it has none."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, ""
    return parts._replace(netloc=host).geturl(), f"Basic {b64encode(unquote(login).encode()).decode()}"


def resource_attributes(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of ``OTEL_RESOURCE_ATTRIBUTES`` and ``OTEL_SERVICE_NAME``."""
    found = _pairs(variables.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    name = variables.get("OTEL_SERVICE_NAME")
    return found | ({"service.name": name} if name else {})


def _pairs(text: str) -> dict[str, str]:
    """Return ``a=1,b=2`` as a dict. Values are percent-encoded."""
    found = (each.partition("=") for each in text.split(",") if "=" in each)
    return {name.strip(): unquote(value.strip()) for name, _, value in found}
