"""The observer `otel`. Importing this package does not import the messages of OpenTelemetry."""

from rolemesh_otel.observer import OtelObserver, OtelOptions

__all__ = ["OtelObserver", "OtelOptions"]
