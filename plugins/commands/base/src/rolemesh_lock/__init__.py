"""The lock of a job's plugins: ``rolemesh plugins lock`` writes it, ``rolemesh run --locked`` enforces it."""

from __future__ import annotations

from rolemesh_lock.command import Locked, LockVerb
from rolemesh_lock.lock import Lock, lock_file, locked, read_lock

__all__ = ["Lock", "LockVerb", "Locked", "lock_file", "locked", "read_lock"]
