"""The standard tests of a transport, for the two that the kernel has."""

from __future__ import annotations

from rolemesh_testing import TransportConformance


class TestShm(TransportConformance):
    plugin = "shm"


class TestTcp(TransportConformance):
    plugin = "tcp"
    between_nodes = True
