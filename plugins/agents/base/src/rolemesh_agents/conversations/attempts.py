"""The attempts at one conversation: each has a fresh episode, and the same seeds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from rolemesh.api.service import CallError
from rolemesh.api.workload import RankContext
from rolemesh.errors import RolemeshError
from rolemesh_agents.contract import is_breach, raised_at
from rolemesh_agents.conversations.parts import in_parts
from rolemesh_agents.conversations.remote_episode import RemoteEpisode
from rolemesh_agents.conversations.results import Failed, Held
from rolemesh_agents.conversations.sampling import SampledTurn, sample_turn
from rolemesh_agents.conversations.talk import Talk
from rolemesh_agents.conversations.tokens import TokenTemplate
from rolemesh_agents.environment import Task
from rolemesh_agents.errors import AgentError, BreachError, ConversationFailedError, EndReached
from rolemesh_agents.harness import Harness
from rolemesh_agents.workloads.agent_options import AgentOptions

__all__ = ["Attempts"]

BEGIN_S = 120.0
"""Seconds for the begin and the reward of an episode."""


class Attempts:
    """Holds conversations until each has ended, or failed for good."""

    def __init__(
        self,
        ctx: RankContext,
        options: AgentOptions,
        template: TokenTemplate,
        harness: Harness,
        params: Mapping[str, Any],
    ) -> None:
        self._ctx, self._options, self._template, self._harness = ctx, options, template, harness
        self._params = params
        self._told = False
        self.left_out = 0
        """The number of sampled tokens that are in no result: those of failed attempts and of cancelled turns."""

    async def conversation(self, task: Task, group_seed: int, number: int, seed: int) -> Held | Failed:
        """Hold conversation `number` of a group, and try again if it fails.

        An attempt that has begun an action that must not be repeated is the last one: another would do it again.
        """
        for attempt in range(self._options.retries + 1):
            episode = RemoteEpisode(self._ctx, self._options.environment, task, group_seed, self._tell)
            talks: list[Talk] = []
            try:
                return await self._attempt(episode, number, seed, talks)
            except ConversationFailedError as error:
                self.left_out += sum(talk.sampled for talk in talks)
                failed = Failed(error.what, attempt + 1, error.remedy, isinstance(error, BreachError))
                self._ctx.count(attempts_failed=1)
                self._ctx.log.warning("task %s, conversation %s: %s", task.number, number, error.what)
            finally:
                self._ctx.count(episodes_restored=episode.losses, tool_timeouts=episode.late_calls)
            await episode.end()
            if episode.unrepeatable:
                break
        return failed

    def _tell(self, text: str) -> None:
        """Warn the user, once for each group."""
        if not self._told:
            self._told = True
            self._ctx.warn(text)

    async def _attempt(self, episode: RemoteEpisode, number: int, seed: int, talks: list[Talk]) -> Held:
        """Hold a conversation, which is then the last one of `talks`."""
        options = self._options
        waited = {"engine": 0.0, "trainer": 0.0}
        began = time.monotonic()

        async def sampler(prompt: np.ndarray[Any, np.dtype[Any]], params: Mapping[str, Any]) -> SampledTurn:
            asked = time.monotonic()
            tokens = 0

            async def part(prompt: np.ndarray[Any, np.dtype[Any]], params: Mapping[str, Any]) -> SampledTurn:
                nonlocal tokens
                made = await sample_turn(self._ctx, options.rollout, prompt, params, options.limits.turn_s)
                waited["trainer"] += made.waited
                tokens += len(made.ids)
                return made

            try:
                return await in_parts(part, prompt, params, options.part)
            except BaseException:
                self.left_out += tokens
                raise
            finally:
                waited["engine"] += time.monotonic() - asked

        start = await episode.begin(BEGIN_S)
        try:
            talk = Talk(number, seed, start, episode, self._template, sampler, options.limits, self._params)
            talks.append(talk)
            await self._harness.run(talk)
        except EndReached:
            pass
        except ConversationFailedError:
            raise
        except (Exception, SystemExit) as error:
            known = is_breach(error) or isinstance(error, (AgentError, CallError))
            if isinstance(error, RolemeshError) and not known:
                raise  # wrong use of rolemesh: another task would not help
            self._ctx.log.warning("the harness raised", exc_info=error)
            at = raised_at(error)
            if isinstance(error, CallError) and is_breach(error):
                raise BreachError(error.what, remedy=error.remedy) from error
            if is_breach(error):
                raise BreachError(f"the harness broke its contract: {error.what} {at}", remedy=error.remedy) from error
            raise ConversationFailedError(f"the harness raised {type(error).__name__}: {error} {at}") from error
        talk.returned()
        reward = talk.reward if talk.reward is not None else await episode.reward(BEGIN_S)
        await episode.end()
        took = max(time.monotonic() - began, 1e-9)
        trainer = min(waited["trainer"], waited["engine"])  # a logged answer took no time, but says for what it waited
        self._ctx.metric(
            waiting_engine=(waited["engine"] - trainer) / took,
            waiting_trainer=trainer / took,
            waiting_tools=episode.waited / took,
        )
        self._ctx.count(unparsed_calls=talk.unparsed)
        return Held(talk.transcripts, reward, talk.ended, talk.reason, talk.turns)
