"""The workload `environment`: a role whose ranks run episodes for agents."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from pydantic import BaseModel, Field

from rolemesh.api.service import service
from rolemesh.api.workload import RankContext, Workload
from rolemesh.errors import RolemeshError
from rolemesh_agents.contract import breach, is_breach, raised_at
from rolemesh_agents.conversations.action_log import LoggedAction
from rolemesh_agents.environment import Environment, Episode, Task
from rolemesh_agents.episodes.open_episode import OpenEpisode, SandboxPlace
from rolemesh_agents.episodes.plain_errors import SHORTAGES, EpisodeRaisedError
from rolemesh_agents.episodes.worker import LateError
from rolemesh_agents.errors import SandboxLostError
from rolemesh_agents.sandbox import Limits
from rolemesh_agents.workloads.deck import Deck
from rolemesh_agents.workloads.listed import check_listed, listed_name
from rolemesh_agents.workloads.trial import try_sandbox

if TYPE_CHECKING:
    from rolemesh.job.prepared import CheckedJob

__all__ = ["EnvironmentOptions", "EnvironmentWorkload"]

EPISODES = 1024
"""Maximum number of calls that run at once in a rank."""


FIRST_S = 30.0
"""Maximum number of seconds that other episodes wait for the begin of the first one."""
PAUSE_S = 3.0
"""Seconds after an error of `SHORTAGES` until the agent hears of it, and begins the episode again."""


class EnvironmentOptions(BaseModel, extra="forbid"):
    """Options of the workload `environment`."""

    environment: str | None = Field(
        None, description="name of an environment under plugins.environments; null: the only one"
    )
    sandbox: str | None = Field(
        None, description="name of a sandbox under plugins.sandboxes, of which each episode gets one; null: none"
    )
    limits: Limits = Field(Limits(), description="limits of the commands in a sandbox")
    content_kb: int = Field(default=64, ge=1, description="longest answer of a tool in 10^3 bytes; the rest is cut")
    state_kb: int = Field(
        256,
        ge=0,
        description="largest snapshot of an episode in 10^3 bytes that the agent keeps after each action. An episode "
        "with a larger one is restored by repeating its actions",
    )
    memory_mb: float | None = Field(
        4000.0,
        gt=0,
        description="memory in 10^6 bytes that the process of an episode may take beyond what it has at its start; "
        "null: no limit",
    )


class EnvironmentWorkload(Workload):
    """Runs episodes of one environment. Each session of an agent is one episode.

    The rank keeps no state of its own: the agent logs all answers and restores the episodes of a rank that died.
    """

    Options = EnvironmentOptions
    options: EnvironmentOptions
    deterministic = True
    env: ClassVar[Mapping[str, str]] = {"PYTHONHASHSEED": "0"}
    """Some packages make tasks from sets of strings; the roles `tasks` and `environment` must see the same ones."""

    @classmethod
    def check_flow(cls, options: EnvironmentOptions, role: str, job: CheckedJob) -> None:
        """See `Workload.check_flow`: the job file must list the environment and the sandbox."""
        check_listed(job, "environments", options.environment, "environment")
        if options.sandbox is not None:
            check_listed(job, "sandboxes", options.sandbox, "sandbox")

    def setup(self, ctx: RankContext) -> None:
        """See `Workload.setup`."""
        self._ctx = ctx
        name = listed_name(ctx.plugins, "environments", self.options.environment)
        self._environment: Environment = ctx.plugins["environments", name]()
        self._deck = Deck(self._environment, name, ctx.seed)
        self._episodes: dict[str, tuple[int, OpenEpisode]] = {}
        self._first: asyncio.Event | None = None
        """The open episodes and the steps in which they began, by session."""
        self._said = False
        if self.options.sandbox is not None:
            try_sandbox(ctx, self.options.sandbox, self.options.limits)

    # ------------------------------------------------------------------------------------------- what agents call

    @service(concurrency=EPISODES, recorded=True)
    async def begin(self, task: Mapping[str, Any], seed: int, limit: float) -> dict[str, Any]:
        """Begin an episode in this session. Returns `messages`, `tools`, `state`, `seconds`; or `failed`, a reason."""

        async def begun() -> dict[str, Any]:
            async with self._after_the_first():
                return await self._new().begin(msgspec.convert(task, Task), seed, limit)

        return await self._answered(begun)

    @service(concurrency=EPISODES, recorded=True)
    async def call(self, given: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Run a call of a tool. Returns `content`, `done`, `state`, `seconds`, perhaps `late`; or `failed`."""
        return await self._answered(lambda: self._present().act("call", given, limit))

    @service(concurrency=EPISODES, recorded=True, repeatable=False)
    async def call_once(self, given: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """As `call`, for a tool that must not be called twice."""
        return await self._answered(lambda: self._present().act("call", given, limit))

    @service(concurrency=EPISODES, recorded=True)
    async def reply(self, given: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Take a turn without calls. Returns `messages`, `done`, `state`, `seconds`; or `failed`."""
        return await self._answered(lambda: self._present().act("reply", given, limit))

    @service(concurrency=EPISODES, recorded=True)
    async def reward(self, limit: float) -> dict[str, Any]:
        """Judge and close the episode. Returns `value`, `parts`, `success`, `seconds`; or `failed`."""
        answer = await self._answered(lambda: self._present().reward(limit))
        await self._close(self._session)
        return answer

    @service(concurrency=EPISODES, recorded=True)
    async def resume(
        self, task: Mapping[str, Any], seed: int, state: bytes | None, actions: list[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Begin an episode in this session as another rank had left it. Returns nothing, or `failed`."""

        async def restored() -> dict[str, Any]:
            episode, limit = self._new(), 600.0
            logged = [msgspec.convert(each, LoggedAction) for each in actions]
            await episode.restore(msgspec.convert(task, Task), seed, state, logged, limit)
            return {}

        return await self._answered(restored)

    @service(concurrency=EPISODES)
    async def end(self) -> None:
        """Close the episode of this session, if there is one."""
        await self._close(self._session)

    @service(concurrency=EPISODES, recorded=True)
    async def another_task(self, seed: int) -> dict[str, Any]:
        """Return a task for training that is chosen by `seed`; or `failed`, a reason."""

        async def task() -> dict[str, Any]:
            return self._deck.any_task(seed)

        return await self._answered(task)

    # ---------------------------------------------------------------------------------------------- what ends them

    def committed(self, step: int) -> None:
        """See `Workload.committed`. Close the episodes that no agent can come back to."""
        over = [session for session, (began, _) in self._episodes.items() if began <= step]
        if over:
            left = [self._episodes.pop(session)[1] for session in over]
            threading.Thread(target=_close_all, args=(left,), daemon=True).start()

    def teardown(self) -> None:
        """See `Workload.teardown`. Close everything."""
        _close_all([episode for _, episode in self._episodes.values()])
        self._episodes.clear()
        self._environment.close()

    # ------------------------------------------------------------------------------------------------------- inside

    @property
    def _session(self) -> str:
        by = self._ctx.called_by
        return by.session if by is not None else ""

    def _new(self) -> OpenEpisode:
        options = self.options
        place = None
        if options.sandbox is not None:
            place = SandboxPlace(self._ctx.plugins["sandboxes", options.sandbox](), options.limits)
        episode = OpenEpisode(
            self._unused(self._environment.episode()),
            place,
            content_bytes=options.content_kb * 1000,
            state_bytes=options.state_kb * 1000,
            memory_mb=options.memory_mb,
            below=Path(self._ctx.tmp_dir),
        )
        by = self._ctx.called_by
        self._episodes[self._session] = (by.step if by is not None else 0), episode
        return episode

    @asynccontextmanager
    async def _after_the_first(self) -> AsyncIterator[None]:
        """Wait until the first episode has begun: the rank has then imported what all of them need."""
        if self._first is None:
            self._first = asyncio.Event()
            try:
                yield
            finally:
                self._first.set()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S):
                await self._first.wait()
        yield

    def _unused(self, found: Any) -> Episode:
        """Return `found`. Raises a `breach` unless it is an episode, and no open one."""
        if not isinstance(found, Episode):
            what = f"Environment.episode of {self.options.environment} returned {found!r}, which is no Episode"
            raise breach(what, remedy="return an object of a subclass of rolemesh_agents.Episode")
        if any(each.runs(found) for _, each in self._episodes.values()):
            what = f"Environment.episode of {self.options.environment} returned an episode that is already open"
            raise breach(what, remedy="return a new object each time")
        return found

    def _present(self) -> OpenEpisode:
        found = self._episodes.get(self._session)
        if found is None:
            raise LookupError("there is no episode in this session")
        return found[1]

    async def _answered(self, action: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Return the answer of `action`, or why there is none: an answer is logged, an exception is not.

        `lost`: the episode's sandbox is gone, or the machine refuses what the episode needs (`short`). The agent may
        begin it again, here or elsewhere. `failed`: anything else. `breach`: the environment has broken its contract.
        """
        try:
            return await action()
        except SandboxLostError as error:
            self._ctx.log.warning("an episode is lost: %s", error)
            await self._close(self._session)
            return {"lost": str(error)}
        except LateError as error:
            remedy = "mend what it waits for; a slow tool may need a larger limits.call_s of the agent"
            reason = f"the episode hangs: {error}\n  → {remedy}"
        except Exception as error:
            told = error if isinstance(error, EpisodeRaisedError) else None
            if told is None:
                self._ctx.log.warning("an episode failed", exc_info=error)
            else:
                self._ctx.log.warning("an episode failed: %s\n%s", told, told.story)
            if isinstance(error, OSError) and error.errno in SHORTAGES:
                await self._close(self._session)
                await asyncio.sleep(PAUSE_S)
                where = f"role {self._ctx.role}, rank {self._ctx.rank}"
                return {"lost": f"{where}: the machine refuses what an episode needs ({error})", "short": True}
            if is_breach(error):
                return {"failed": error.what, "breach": True, "remedy": error.remedy}
            reason = f"the episode raised {type(error).__name__}: {error}" if told is None else str(told)
            at = told.at if told is not None else "" if isinstance(error, RolemeshError) else raised_at(error)
            if at:
                log = f"the log of role {self._ctx.role}, rank {self._ctx.rank}"
                reason += f" {at}\n  → mend the environment; {log} has the traceback"
        return {"failed": reason}

    async def _close(self, session: str) -> None:
        found = self._episodes.pop(session, None)
        if found is not None:
            await found[1].close()


def _close_all(episodes: list[OpenEpisode]) -> None:
    async def close() -> None:
        await asyncio.gather(*(episode.close() for episode in episodes))

    if episodes:
        asyncio.run(close())
