"""Prefill and decode ranks of PD-separated inference, in units of ranks that are near each other and know each
other."""

from __future__ import annotations

from rolemesh_pd.options import PdOptions
from rolemesh_pd.scheduler import PdScheduler

__all__ = ["PdOptions", "PdScheduler"]
