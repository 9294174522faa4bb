"""Finds what holds a job back, and shares a budget of ranks out among its elastic roles so that it goes fastest."""

from __future__ import annotations

from rolemesh_scaler_bottleneck.model import Bottleneck, bottleneck
from rolemesh_scaler_bottleneck.scaler import BottleneckOptions, BottleneckScaler

__all__ = ["Bottleneck", "BottleneckOptions", "BottleneckScaler", "bottleneck"]
