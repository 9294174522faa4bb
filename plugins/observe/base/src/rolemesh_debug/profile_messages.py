"""The messages between the master's part of the extension `debug` and its part in a rank."""

from __future__ import annotations

from rolemesh_durable.api.extensions import ExtensionMessage

__all__ = ["ProfileDone", "ProfileOrder"]


class ProfileOrder(ExtensionMessage, frozen=True, tag="debug/profile"):
    """The rank profiles its next `steps` steps; 0: none. `reason` identifies the order."""

    steps: int
    reason: str


class ProfileDone(ExtensionMessage, frozen=True, tag="debug/profiled"):
    """The rank has written `file` in the run's folder, about `steps` steps from step `first` on; or it has `failed`."""

    reason: str
    first: int
    steps: int
    file: str
    failed: str
