"""``rolemesh doctor``: what of this machine keeps jobs from running, each finding with its remedy."""

from __future__ import annotations

from rolemesh_doctor.examination import Examination
from rolemesh_doctor.finding import Finding

__all__ = ["Examination", "Finding"]
