"""Which boot of which machine this process is of."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["boot_id"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """A name that all processes of this boot of this machine share: monotonic clocks and pids can be compared among
    them. "" where the system has none."""
    with suppress(OSError):
        return BOOT_ID.read_text().strip()
    return ""
