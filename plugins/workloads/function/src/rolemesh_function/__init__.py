"""The workload `function`: a plain Python function, or the methods of a plain class, as a role."""

from __future__ import annotations

from rolemesh_function.workload import FunctionOptions, FunctionWorkload, parse_partition

__all__ = ["FunctionOptions", "FunctionWorkload", "parse_partition"]
