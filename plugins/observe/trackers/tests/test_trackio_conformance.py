"""The observer passes the conformance kit."""

from __future__ import annotations

import pytest

from rolemesh_testing import ObserverConformance

pytestmark = pytest.mark.soak


class TestConformance(ObserverConformance):
    plugin = "trackio"
    options = {"interval_s": 0}
    bad_options = ({"project": ""}, {"server": "ftp://x"})
    examples = 2
    simplify = False
