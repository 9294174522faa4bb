"""For tools that read a run's checkpoints: find, verify and load them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolemesh_durable.api import importer, names

if TYPE_CHECKING:
    from rolemesh_durable.checkpoint.disk import MANIFEST as MANIFEST
    from rolemesh_durable.checkpoint.disk import DiskCheckpoint as DiskCheckpoint
    from rolemesh_durable.checkpoint.disk import Manifest as Manifest
    from rolemesh_durable.checkpoint.disk import find_checkpoints as find_checkpoints
    from rolemesh_durable.checkpoint.disk import newest_intact as newest_intact
    from rolemesh_durable.checkpoint.disk import snapshots_folder as snapshots_folder
    from rolemesh_durable.checkpoint.disk import states as states
    from rolemesh_durable.checkpoint.disk import verify as verify
    from rolemesh_durable.checkpoint.export import can_export as can_export
    from rolemesh_durable.checkpoint.layout import SnapshotError as SnapshotError
    from rolemesh_durable.checkpoint.reshard import merge as merge
    from rolemesh_durable.checkpoint.resume import ResumePoint as ResumePoint
    from rolemesh_durable.checkpoint.resume import find_source as find_source

_HOMES = {
    "checkpoint.disk": "MANIFEST DiskCheckpoint Manifest find_checkpoints newest_intact snapshots_folder states verify",
    "checkpoint.export": "can_export",
    "checkpoint.layout": "SnapshotError",
    "checkpoint.reshard": "merge",
    "checkpoint.resume": "ResumePoint find_source",
}
__all__ = names(_HOMES)
__getattr__ = importer(__name__, _HOMES)
