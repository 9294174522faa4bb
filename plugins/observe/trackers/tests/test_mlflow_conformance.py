"""The observer passes the conformance kit, with a server that does not answer.

A database takes six seconds to create, and the kit creates some dozens. test_mlflow.py uses one.
"""

from __future__ import annotations

import pytest

from rolemesh_testing import ObserverConformance

pytestmark = pytest.mark.soak


class TestConformance(ObserverConformance):
    plugin = "mlflow"
    options = {"tracking_uri": "http://127.0.0.1:9", "interval_s": 0}
    bad_options = ({"experiment": "x" * 501}, {"tags": ["x"]})
    examples = 5
