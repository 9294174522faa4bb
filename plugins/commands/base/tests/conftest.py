"""The command line as a person calls it, and the outside of a master."""

from tests.unit.engine.conftest import runs, start_master
from tests.unit.kernel.cli.conftest import rolemesh

__all__ = ["rolemesh", "runs", "start_master"]
