"""Checks of what environments and harnesses give to a conversation. The errors name method and value. Pure.

Each error is a breach of contract: a `PluginError` of the kind "misbehaved".
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import msgspec
import numpy as np

from rolemesh.api.service import CallError
from rolemesh.errors import PluginError
from rolemesh_agents.actions import joined
from rolemesh_agents.environment import Reward
from rolemesh_agents.errors import BreachError, ConversationFailedError

__all__ = [
    "breach",
    "failed_call",
    "instance",
    "is_breach",
    "kind_of",
    "messages_of",
    "raised_at",
    "reward_of",
    "truth",
]

T = TypeVar("T")
MEND = "mend the plugin: the docstring of the method's base class in rolemesh_agents says what it returns"


def breach(what: str, *, where: str | None = None, remedy: str | None = None) -> PluginError:
    """Return the error for a plugin that breaks its contract."""
    return PluginError(what, kind="misbehaved", where=where, remedy=remedy or MEND)


def is_breach(error: BaseException) -> TypeGuard[PluginError]:
    """Return True if a plugin has broken its contract."""
    return isinstance(error, PluginError) and error.kind == "misbehaved"


def failed_call(role: str, error: CallError) -> ConversationFailedError:
    """Return the end of a conversation for which a service of `role` has raised."""
    if is_breach(error):
        return BreachError(error.what, remedy=error.remedy)
    return ConversationFailedError(f"role {role} failed: {error.what}")


def raised_at(error: BaseException) -> str:
    """Return where a plugin raised `error`, as ``(file:line)``: the last line that is not of this package."""
    frames = traceback.extract_tb(error.__traceback__)
    package = str(Path(__file__).parent)
    own = next((frame for frame in reversed(frames) if not frame.filename.startswith(package)), frames[-1])
    return f"({own.filename}:{own.lineno})"


def messages_of(found: Sequence[Any], source: str) -> list[dict[str, Any]]:
    """Return chat messages as JSON values. Text that comes in parts becomes one text.

    `source` begins an error, such as "Episode.reset returned".
    """
    for each in found:
        if not isinstance(each, dict) or not isinstance(each.get("role"), str):
            raise breach(f"{source} the message {each!r:.200} without a role")
    plain = msgspec.json.decode(msgspec.json.encode([_with_text(each, source) for each in found]))
    return [dict(each) for each in plain]


def reward_of(found: Any, source: str) -> Reward:
    """Return a reward whose numbers are finite."""
    reward = instance(found, Reward, source)
    success = None if reward.success is None else truth(reward.success, f"{source} a Reward", "success")
    parts = {str(name): _number(part, f"Reward.parts[{name!r}]") for name, part in reward.parts.items()}
    return Reward(_number(reward.value, "Reward.value"), parts, success)


def _with_text(message: dict[str, Any], source: str) -> dict[str, Any]:
    role, content = message["role"], message.get("content")
    if isinstance(content, list | tuple):
        kinds = {part.get("type") if isinstance(part, dict) else type(part).__name__ for part in content}
        if kinds - {"text"}:
            kind = ", ".join(sorted(map(str, kinds - {"text"})))
            raise breach(f"{source} a message of {role} with {kind}; a conversation has text only")
        content = joined((str(part["text"]) for part in content), turn=role == "assistant")
    if not isinstance(content, str) and not (content is None and role == "assistant"):
        raise breach(f"{source} a message of {role} whose content is {kind_of(content)} instead of text")
    return message if content is None else message | {"content": _encodable(content)}


def _encodable(text: str) -> str:
    """Return `text` with "?" for lone surrogates, which UTF-8 cannot express."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _number(found: Any, what: str) -> float:
    """Return a finite number."""
    if isinstance(found, str | bytes):
        raise breach(f"{what} is {found!r:.100}, not a number")
    try:
        value = float(found)
    except (TypeError, ValueError) as error:
        raise breach(f"{what} is {found!r:.100}, not a number") from error
    if not math.isfinite(value):
        raise breach(f"{what} is {value}, not a finite number")
    return value


def truth(found: Any, source: str, name: str) -> bool:
    """Return a bool, also for one of numpy."""
    if not isinstance(found, bool | np.bool_):
        raise breach(f"{source} whose {name} is {found!r:.100} instead of True or False")
    return bool(found)


def instance(found: Any, wanted: type[T], source: str) -> T:
    """Return `found`, which must be a `wanted`."""
    if not isinstance(found, wanted):
        raise breach(f"{source} {kind_of(found)} instead of {wanted.__name__}")
    return found


def kind_of(found: Any) -> str:
    """Return the name of a value's type."""
    return "None" if found is None else type(found).__name__
