"""Finds the bottleneck of a job, and divides a budget of ranks among its elastic roles so that steps are shortest."""

from __future__ import annotations

from rolemesh_scaler_bottleneck.model import Bottleneck, Model, bottleneck
from rolemesh_scaler_bottleneck.scaler import BottleneckOptions, BottleneckScaler

__all__ = ["Bottleneck", "BottleneckOptions", "BottleneckScaler", "Model", "bottleneck"]
