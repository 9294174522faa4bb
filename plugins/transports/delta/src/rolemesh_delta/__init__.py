"""The transport `delta`: between nodes it sends what has changed since the last value of the edge."""

from rolemesh_delta.transport import DeltaTransport

__all__ = ["DeltaTransport"]
