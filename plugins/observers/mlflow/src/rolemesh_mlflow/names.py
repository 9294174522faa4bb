"""Names of metrics and parameters as MLflow allows them. Pure."""

from __future__ import annotations

import re
from posixpath import normpath

__all__ = ["allowed"]

_OTHER = re.compile(r"[^\w.\-:/ ]")


def allowed(name: str) -> str:
    """Return the name with ``_`` for each character that MLflow refuses. Paths upwards lose their dots."""
    found = _OTHER.sub("_", name)[:240]
    return found if normpath(found) == found and found[0] not in "./" else re.sub(r"[./]", "_", found)
