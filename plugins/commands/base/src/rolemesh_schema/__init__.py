"""The JSON Schema of job files, for editors: ``rolemesh schema`` prints it."""

from __future__ import annotations

from rolemesh_schema.schema import job_schema

__all__ = ["job_schema"]
