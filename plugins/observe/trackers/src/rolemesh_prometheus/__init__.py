"""The observer `prometheus`. Importing this package does not import the client of Prometheus."""

from rolemesh_prometheus.observer import PrometheusObserver, PrometheusOptions

__all__ = ["PrometheusObserver", "PrometheusOptions"]
