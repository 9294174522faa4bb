"""Identify the boot of the machine that this process runs on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["boot_id"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return a name that all processes of this boot of this machine share: they may compare monotonic clocks and pids.
    "" if the system has none."""
    with suppress(OSError):
        return BOOT_ID.read_text().strip()
    return ""
