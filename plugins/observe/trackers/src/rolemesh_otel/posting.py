"""Post a message to a collector."""

from __future__ import annotations

import gzip
import ssl
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from rolemesh_otel.variables import Target, without_login
from rolemesh_tracking import Refused

__all__ = ["post"]

REFUSES = (400, 413)
"""The statuses of a collector that cannot read a message. After all others, such as 401 and 503, it may be repaired."""


def post(target: Target, message: Message) -> None:
    """Post, and return after the collector has answered.

    Raises OSError if it does not answer or is not ready, and `Refused` if it cannot read the message, or says that it
    has rejected a part of it (OTLP's "partial success", which must not be repeated).
    """
    body, headers = message.SerializeToString(), {"Content-Type": "application/x-protobuf", **target.headers}
    url, login = without_login(target.url)
    if login:
        headers.setdefault("Authorization", login)
    if target.gzip:
        body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
    context = None
    if target.certificate or target.client:
        context = ssl.create_default_context(cafile=target.certificate or None)
        if target.client:
            context.load_cert_chain(target.client, target.key or None)
    try:
        with urlopen(Request(url, body, headers, method="POST"), timeout=target.timeout_s, context=context) as answer:
            told = answer.read()
    except HTTPError as error:
        with error:
            what = Refused if error.code in REFUSES else OSError
            raise what(f"{url} answers {error.code} {error.reason}") from None
    if why := _rejected(told):
        raise Refused(f"{url} has rejected {why}")


def _rejected(answer: bytes) -> str:
    """Return how much a collector has rejected, and why; "" for nothing, or for an answer of another protocol.

    The answers about metrics and log records have the same fields on the wire.
    """
    try:
        found = ExportMetricsServiceResponse.FromString(answer).partial_success
    except DecodeError:
        return ""
    number = found.rejected_data_points
    return f"{number} of the points or records: {found.error_message}" if number else ""
