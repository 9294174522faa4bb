"""``rolemesh doctor``: find what keeps jobs from running on this machine. Each finding has a remedy."""

from __future__ import annotations

from rolemesh_doctor.examination import Examination
from rolemesh_doctor.finding import Finding

__all__ = ["Examination", "Finding"]
