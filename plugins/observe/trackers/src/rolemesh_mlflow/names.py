"""Names of metrics and parameters as MLflow allows them. Pure."""

from __future__ import annotations

import re
from posixpath import normpath

from rolemesh_tracking import distinct

__all__ = ["allowed"]

LENGTH = 240
"""Maximum number of characters; MLflow takes 250."""
_OTHER = re.compile(r"[^\w.\-:/ ]")


def allowed(name: str) -> str:
    """Return the name with ``_`` for each character that MLflow refuses. Paths upwards lose their dots.

    A changed name ends as `distinct` says.
    """
    found = _OTHER.sub("_", name)[:LENGTH]
    right = normpath(found) == found and found[0] not in "./"
    return distinct(name, found if right else re.sub(r"[./]", "_", found))
