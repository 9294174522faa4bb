"""The standard tests of an engine, for the two that there are."""

from __future__ import annotations

from rolemesh_testing import EngineConformance


class TestInline(EngineConformance):
    plugin = "inline"


class TestDurable(EngineConformance):
    plugin = "durable"
    options = {"backend": "local"}
