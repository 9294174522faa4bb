"""Which monotonic clock this process goes by."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["boot"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot() -> str:
    """A name that all processes of this boot of this machine share: monotonic clocks can be compared among them."""
    with suppress(OSError):
        return BOOT_ID.read_text().strip()
    return ""
