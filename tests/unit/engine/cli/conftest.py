"""The command line as a person calls it."""

from tests.unit.kernel.cli.conftest import rolemesh

__all__ = ["rolemesh"]
