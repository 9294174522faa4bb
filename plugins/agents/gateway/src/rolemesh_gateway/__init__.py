"""The harness `program` for agents that know nothing of rolemesh. Light, so that the driver may import it."""

from rolemesh_gateway.harness import ProcessHarness
from rolemesh_gateway.options import ProcessOptions

__all__ = ["ProcessHarness", "ProcessOptions"]
