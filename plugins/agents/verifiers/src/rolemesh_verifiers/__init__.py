"""Environments of verifiers, in the processes of the role. They import verifiers for the first task or episode.

verifiers finds a harness by the name of its package. `ChatLoop` is therefore a name of this package.
"""

from typing import Any

from rolemesh_verifiers.environment import VerifiersEnvironment
from rolemesh_verifiers.options import VerifiersOptions

__all__ = ["ChatLoop", "VerifiersEnvironment", "VerifiersOptions"]


def __getattr__(name: str) -> Any:
    if name == "ChatLoop":
        from rolemesh_verifiers.chat_loop import ChatLoop

        return ChatLoop
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
