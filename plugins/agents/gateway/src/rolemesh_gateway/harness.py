"""The harness `program`: it starts an unchanged program for each conversation, and is the program's model."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolemesh.api.workload import RankContext
from rolemesh_agents import Conversation, ConversationFailedError, Harness, Start
from rolemesh_agents.workloads.listed import check_listed
from rolemesh_gateway.dialogue import Dialogue
from rolemesh_gateway.options import ProcessOptions
from rolemesh_gateway.programs import Program, ProgramResult
from rolemesh_gateway.rewards import Failed, explained, verdict
from rolemesh_gateway.sandboxed import ADDRESS, Client, SandboxedProgram, limits_of, parent_of_folders, try_client

if TYPE_CHECKING:
    from rolemesh.job.prepared import CheckedJob
    from rolemesh_gateway.server import Door, Server

__all__ = ["ProcessHarness"]

FORMS = ("response_format", "text.format", "output_config.format")
"""Names of the form of a turn in the APIs."""
INHERITED = ("PATH", "LANG", "LC_ALL", "TZ")
"""The only variables of the rank that a program sees: others may have secrets."""


class ProcessHarness(Harness):
    """Starts a program per conversation. Its API client finds the gateway of this rank in environment variables."""

    Options = ProcessOptions

    @classmethod
    def check_job(cls, options: Any, job: CheckedJob) -> None:
        """See `Harness.check_job`: the job file must list the sandbox."""
        if options.sandbox is not None:
            check_listed(job, "sandboxes", options.sandbox, "option sandbox of the harness process")

    def check_machine(self, ctx: RankContext) -> None:
        """See `Harness.check_machine`: try the sandbox."""
        options: ProcessOptions = self.options
        if options.sandbox is not None:
            try_client(ctx, options.sandbox, limits_of(options), [Path(ctx.base).resolve()])

    async def setup(self, ctx: RankContext) -> None:
        """See `Harness.setup`: start the gateway."""
        from rolemesh_gateway.server import Server

        options: ProcessOptions = self.options
        self._ctx = ctx
        self._warned: set[str] = set()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{ctx.role}-{ctx.rank}-", dir=parent_of_folders(ctx)))
        self._server: Server = Server(
            options.model, options.request_mb, options.waiting, options.retry_s, options.leave_out
        )
        _allow_files()
        await self._server.start()

    async def run(self, talk: Conversation) -> None:
        """See `Harness.run`: start the program, answer its requests, and judge it after its end."""
        options: ProcessOptions = self.options
        door = self._server.open(talk.start, "" if options.sandbox is None else ADDRESS)
        dialogue = Dialogue(talk, door.desk, options.takes, options.reward == "call")
        program = None
        try:
            program = self._program(door, talk.start, talk.seed)
            result = await dialogue.run(lambda: self._over(program))
        finally:
            self._server.close(door)
            if program is not None:
                await program.end()
            self._report(dialogue, door)
        await self._finish(talk, dialogue, result, door.missed)

    async def close(self) -> None:
        """See `Harness.close`."""
        if hasattr(self, "_server"):
            await self._server.stop()
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder, ignore_errors=True)

    def _program(self, door: Door, start: Start, seed: int) -> Program | SandboxedProgram:
        options: ProcessOptions = self.options
        places = {
            "{base}": str(Path(self._ctx.base).resolve()),
            "{python}": sys.executable,
            "{question}": _question(start),
        }
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        own = {"NO_PROXY": "127.0.0.1", "PYTHONHASHSEED": "0", "ROLEMESH_SEED": str(seed)}
        told = {"messages": list(start.messages), "tools": [tool.as_function() for tool in start.tools], "seed": seed}
        command = [_replaced(each, places) for each in options.command]
        env = {name: _replaced(value, places) for name, value in options.env.items()}
        variables = {**own, **env, **door.variables}
        if options.sandbox is not None:
            return SandboxedProgram(
                self._ctx.plugins["sandboxes", options.sandbox](),
                limits_of(options),
                Client(command, variables, json.dumps(told), [Path(places["{base}"])]),
                self._folder,
                functools.partial(self._server.listen, door),
                door.desk.end,
            )
        limits = {
            "seconds": options.seconds,
            "grace_s": options.grace_s,
            "processes": options.processes,
            "kept": options.output_kb * 1000,
        }
        return Program(command, {**inherited, **variables}, json.dumps(told), limits, self._folder, door.desk.end)

    def _over(self, program: Program | SandboxedProgram | None) -> None:
        """The conversation is over: give the program time to end, and then ask it to."""
        if program is not None:
            asyncio.get_running_loop().call_later(self.options.grace_s, program.ask_to_end)

    async def _finish(self, talk: Conversation, dialogue: Dialogue, result: ProgramResult, missed: str) -> None:
        """End the conversation. `missed`: why the last request has no answer.

        Raises `EndReached`, or `ConversationFailedError`.
        """
        options: ProcessOptions = self.options
        over = dialogue.ended is not None
        wrong = options.wrong if over or not missed else ()
        found = verdict(result, options.reward, dialogue.reward, over, options.reward_if_truncated, wrong)
        if isinstance(found, Failed) or not (over or dialogue.counts.turns):
            raise ConversationFailedError(explained(found, result, dialogue.counts.turns, missed))
        if found.reward is not None:
            talk.judge(found.reward)
        if dialogue.ended is not None:
            raise dialogue.ended
        if found.reward is None and not found.truncated:
            await talk.reply(dialogue.last)
        talk.finish(found.truncated)

    def _report(self, dialogue: Dialogue, door: Door) -> None:
        counts = dialogue.counts
        found = {
            "gateway_turns": counts.turns,
            "gateway_repeated": counts.repeated + door.desk.repeated,
            "gateway_cancelled": counts.cancelled,
            "gateway_refused": door.refused,
            "gateway_samples": counts.begun,
        }
        self._ctx.count(**{name: value for name, value in found.items() if value})
        if dialogue.breaks:
            self._ctx.record(gateway_breaks=dialogue.breaks[:10])
            self._warn(
                "breaks",
                f"a request did not continue its conversation ({dialogue.breaks[0]}); the gateway began a new sample, "
                "and counts such samples in gateway_samples",
            )
        if counts.cancelled:
            self._warn(
                "cancelled",
                f"a client has left during {counts.cancelled} turns of a conversation; tokens of a turn that has not "
                "ended are not trained, and gateway_cancelled counts such turns",
            )
        for name in sorted(dialogue.ignored):
            remedy = "; to force the form, add structured_outputs to the option takes" if name in FORMS else ""
            self._warn(f"ignored {name}", f"the gateway ignores the parameter {name} of requests{remedy}")

    def _warn(self, key: str, text: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            self._ctx.warn(text)


def _replaced(text: str, places: Mapping[str, str]) -> str:
    """Replace the names in one pass, so that a question with the text `{base}` stays as it is."""
    return re.sub("|".join(map(re.escape, places)), lambda found: places[found[0]], text)


def _question(start: Start) -> str:
    """Return the text of the environment's last message, without the null characters that no argument can have."""
    text: str | None = start.messages[-1].get("content") if start.messages else None
    return (text or "").replace("\0", "")


def _allow_files() -> None:
    """Raise the limit of open files: each conversation needs at least two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
