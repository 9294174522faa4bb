"""An episode in the role `environment`, as a conversation sees it. It survives the death of the environment's rank."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from rolemesh.api.service import CallError, CallTimeoutError, CallUncertainError, SessionLostError
from rolemesh.api.workload import RankContext
from rolemesh_agents.actions import ToolCall
from rolemesh_agents.contract import failed_call
from rolemesh_agents.conversations.action_log import ActionLog
from rolemesh_agents.environment import Observation, Outcome, Reward, Start, Task
from rolemesh_agents.errors import BreachError, ConversationFailedError

__all__ = ["RemoteEpisode"]

MOST_DEATHS: Final = 3
"""Number of ranks that may die while they have one action before it counts as the reason."""
MOST_LOSSES: Final = 10
"""As `MOST_DEATHS`, but also with ranks that die before they have begun or restored the episode, and with machines that
refuse what it needs."""
PATIENCE: Final = 60.0
"""Seconds on top of an action's own limit until its rank counts as stuck."""
RESTORE_S: Final = 600.0
"""Seconds until a restored episode must be there."""


ONCE: Final = "_once"
"""End of the names of services that never run twice."""


class _EpisodeLostError(Exception):
    """The episode is gone, and may be restored. The text says why. `blames`: the action may be the reason."""

    def __init__(self, why: str, blames: bool) -> None:
        super().__init__(why)
        self.blames = blames


class RemoteEpisode:
    """One attempt at one task, in a session with a rank of the role `environment`.

    All answers of the role are recorded: a restarted agent gets them again without asking. If the environment's rank
    dies, this object begins another session and restores the episode in it, from its last state or by repeating its
    actions. Methods raise `ConversationFailedError` if that is not possible.
    """

    def __init__(
        self, ctx: RankContext, role: str, task: Task, seed: int, tell: Callable[[str], None] = lambda text: None
    ) -> None:
        """`tell` is called with a sentence for the user when the episode has to wait."""
        self._ctx, self._role, self._task, self._seed, self._tell = ctx, role, task, seed, tell
        self._session: str | None = None
        self._log = ActionLog()
        self._restorable = self.closed = False
        self.hears = False
        """Whether the episode wants whole turns, see `Episode.hear`."""
        self.losses = self.late_calls = 0
        self.seconds = 0.0
        """Seconds that the environment has worked on this episode, without those that were repeated."""
        self.waited = 0.0
        """Seconds that this process has waited for answers."""

    @property
    def unrepeatable(self) -> bool:
        """True if the episode has begun an action that must not be repeated, so that no other episode may replace
        it."""
        return self._log.unrepeatable

    async def begin(self, limit: float) -> Start:
        """Begin the episode, within `limit` seconds."""
        answer = await self._ask("begin", limit, msgspec.to_builtins(self._task), self._seed, limit)
        self._log.begun(answer.get("state"))
        self._restorable = True
        self.hears = bool(answer.get("hears"))
        return msgspec.convert({"messages": answer["messages"], "tools": answer["tools"]}, Start)

    async def call(
        self, call: ToolCall, repeatable: bool, limit: float, turn: tuple[str, Sequence[ToolCall]] | None = None
    ) -> Observation:
        """Run one call of a tool, within `limit` seconds. `turn`: see `Episode.hear`."""
        given: dict[str, Any] = {"name": call.name, "arguments": dict(call.arguments), "id": call.id}
        if turn is not None:
            given["turn"] = [turn[0], [msgspec.to_builtins(each) for each in turn[1]]]
        answer = await self._act("call", given, repeatable, limit)
        self.late_calls += bool(answer.get("late"))
        return Observation(answer["content"], answer["done"])

    async def reply(self, content: str, limit: float) -> Outcome:
        """Give a turn without calls to the environment."""
        answer = await self._act("reply", {"content": content}, True, limit)
        return Outcome(answer["messages"], answer["done"])

    async def reward(self, limit: float) -> Reward:
        """Judge the episode, which ends it."""
        answer = await self._ask("reward", limit, limit)
        self.closed = True
        return Reward(answer["value"], answer["parts"], answer["success"])

    async def end(self) -> None:
        """End the episode without a reward. Errors do not matter: the rank closes it at the commit of the step."""
        if self._session is not None and not self.closed:
            self.closed = True
            with contextlib.suppress(CallError):
                await self._ctx.call(self._role, "end", session=self._session, timeout=PATIENCE)

    async def _act(self, kind: str, given: Mapping[str, Any], repeatable: bool, limit: float) -> Mapping[str, Any]:
        self._log.unrepeatable |= not repeatable
        method = kind if repeatable else f"{kind}{ONCE}"
        answer = await self._ask(method, limit, dict(given), limit)
        self._log.answered(kind, given, limit, repeatable, answer)
        return answer

    async def _ask(self, method: str, limit: float, *args: Any) -> Mapping[str, Any]:
        """Call a service of the episode, and restore the episode as often as its rank dies."""
        losses = deaths = 0
        while losses < MOST_LOSSES and deaths < MOST_DEATHS:
            begun = False
            try:
                await self._connect()
                begun = self._restorable
                return await self._answer(method, limit + PATIENCE, *args)
            except _EpisodeLostError as error:
                self._session, why = None, str(error)
                losses, self.losses = losses + 1, self.losses + 1
                deaths += begun and error.blames
        what = f"{why}, {losses} times in a row during `{method}` of one conversation"
        raise ConversationFailedError(what, remedy="see its log: the environment or a tool may end the process")

    async def _connect(self) -> None:
        """Begin a session, and restore the episode in it if it had begun."""
        if self._session is not None:
            return
        self._session = self._ctx.session(self._role)
        if not self._restorable:
            return
        plan = self._log.plan()
        if (action := plan.forbidden) is not None:
            what = f"the episode's rank died, and restoring it would repeat {action.given.get('name', action.kind)!r}"
            raise ConversationFailedError(f"{what}, which must not be repeated")
        actions = [msgspec.to_builtins(each) for each in plan.actions]
        given = msgspec.to_builtins(self._task), self._seed, plan.state, actions
        await self._answer("resume", RESTORE_S, *given, count=False)

    async def _answer(self, method: str, timeout: float, *args: Any, count: bool = True) -> Mapping[str, Any]:
        asked = time.monotonic()
        try:
            session = self._session or ""
            answer = await self._ctx.call(self._role, method, *args, session=session, timeout=timeout)
        except SessionLostError:  # a call that must not be repeated has not left then
            raise _EpisodeLostError(f"the rank of {self._role} died", True) from None
        except CallUncertainError:
            what = f"the rank of {self._role} died during a call of a tool that must not be repeated"
            raise ConversationFailedError(what) from None
        except CallTimeoutError as error:
            raise ConversationFailedError(f"role {self._role} is stuck: {error.what}") from None
        except CallError as error:
            raise failed_call(self._role, error) from None
        finally:
            self.waited += time.monotonic() - asked
        if "lost" in answer and method.endswith(ONCE):
            what = f"{answer['lost']}, during a call of a tool that must not be repeated"
            raise ConversationFailedError(what)
        if answer.get("short"):
            self._tell(f"conversations wait for {answer['lost']}")
        if "lost" in answer:
            raise _EpisodeLostError(answer["lost"], not answer.get("short"))
        if answer.get("breach"):
            raise BreachError(answer["failed"], remedy=answer["remedy"])
        if "failed" in answer:
            raise ConversationFailedError(answer["failed"])
        self.seconds += answer.get("seconds", 0.0) if count else 0.0
        found: Mapping[str, Any] = answer
        return found
