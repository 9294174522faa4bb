"""The workload `agent`: it holds conversations between the rollout's model and the environment's episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rolemesh.api.batch import Batch
from rolemesh.api.partition import Balanced, Split
from rolemesh.api.workload import OperatorSpec, RankContext, Workload, operator, stable_seed
from rolemesh.errors import OptionsError, nearest
from rolemesh.graph.logical import OpCall
from rolemesh_agents.contract import breach
from rolemesh_agents.conversations.attempts import Attempts
from rolemesh_agents.conversations.results import Failed, Held, failed_row, group_rows, unrolled
from rolemesh_agents.conversations.tokens import TokenTemplate
from rolemesh_agents.conversations.tool_loop import ToolLoop
from rolemesh_agents.environment import Task
from rolemesh_agents.errors import AgentError
from rolemesh_agents.harness import Harness
from rolemesh_agents.workloads.agent_options import AgentOptions
from rolemesh_agents.workloads.environment import EnvironmentOptions
from rolemesh_agents.workloads.listed import check_listed, listed_name
from rolemesh_agents.workloads.model_folder import check_model_folder
from rolemesh_agents.workloads.tasks import TasksOptions

if TYPE_CHECKING:
    from rolemesh.job.prepared import CheckedJob

__all__ = ["AgentWorkload"]

DEFAULT_HARNESS = "tools"


def check_tasks(options: AgentOptions, op: OpCall, job: CheckedJob) -> None:
    """Raise `OptionsError` if the tasks of a call are of another environment than the one that runs the episodes."""
    role = job.roles.get(options.environment)
    if role is None or not isinstance(role.options, EnvironmentOptions):
        return
    runs = check_listed(job, "environments", role.options.environment, "environment")
    for edge in job.graph.inputs(op.id):
        source = job.graph.ops[edge.src].role
        dealt = job.roles[source].options
        if not isinstance(dealt, TasksOptions):
            continue
        deals = check_listed(job, "environments", dealt.environment, "environment")
        if deals != runs:
            what = f"role {source} deals out tasks of {deals}, and {options.environment} runs {runs}"
            raise OptionsError(what, where="environment", remedy="give both roles the same environment")


class UnderWay:
    """Counts conversations that end, and those that have begun, in each call of an operator.

    A conversation that began in an earlier call, and has not ended there, counts in the present one.
    """

    def __init__(self) -> None:
        self._call: object = None
        self._ended = self._begun = 0

    def count(self, call: object, begun: int = 0, ended: int = 0) -> tuple[int, int]:
        """Count in `call`. Return the numbers of conversations that have ended in it, and begun."""
        if call != self._call:
            self._call, self._ended, self._begun = call, 0, self._begun - self._ended
        self._begun, self._ended = self._begun + begun, self._ended + ended
        return self._ended, self._begun


class AgentWorkload(Workload):
    """Holds conversations, many at the same time. It keeps no state, and every answer that it acts on is logged.

    A restarted rank holds the same conversations again, with the logged answers, until it comes to the first question
    that nobody has answered yet.
    """

    Options = AgentOptions
    options: AgentOptions
    deterministic = True

    @classmethod
    def operators(cls, options: AgentOptions) -> Mapping[str, OperatorSpec]:
        """See `Workload.operators`: an item is a task, of which `converse` returns a group."""
        found = dict(super().operators(options))
        for name, samples, ahead in (("converse", options.samples, options.ahead), ("evaluate", 1, 0)):
            several = max(1, options.conversations // samples)
            shared = Balanced(concurrency=several, ahead=ahead, results=samples)
            found[name] = msgspec.structs.replace(found[name], inputs={"tasks": shared}, returns=shared)
        return found

    @classmethod
    def varies(cls, options: AgentOptions) -> bool:
        """See `Workload.varies`."""
        return not options.deterministic

    @classmethod
    def check_flow(cls, options: AgentOptions, role: str, job: CheckedJob) -> None:
        """See `Workload.check_flow`: the model has a chat template, the harness has what it needs, and the flow lets
        the agent call the rollout and the environment."""
        if options.template is None:
            check_model_folder(Path(job.base, options.model))
        elif options.reasoning != "text":
            what = "reasoning has no effect: the job's own template takes turns apart"
            raise OptionsError(what, where="reasoning", remedy="leave it out, and let the code of template do this")
        if _has_harness(options, job.declared):
            harness = job.declared["harnesses", check_listed(job, "harnesses", options.harness, "harness")]
            harness.cls.check_job(harness.options, job)
        for op in job.graph.ops:
            if op.role != role or op.operator == "samples":
                continue
            check_tasks(options, op, job)
            for key, called in (("rollout", options.rollout), ("environment", options.environment)):
                if called not in job.roles:
                    what, known = f"the job has no role {called!r}", job.roles
                    raise OptionsError(what, where=key, remedy=nearest(called, known))
                if called not in op.calls:
                    what = f"{role}.{op.operator} calls role {called!r}, and the flow does not say so"
                    remedy = f"write calls=[job.{options.rollout}, job.{options.environment}] in the flow"
                    raise OptionsError(what, where=key, remedy=remedy)

    def setup(self, ctx: RankContext) -> None:
        """See `Workload.setup`."""
        self._ctx = ctx
        options = self.options
        self._template: TokenTemplate = _load_template(options, Path(ctx.base, options.model))
        if _has_harness(options, ctx.plugins):
            name = listed_name(ctx.plugins, "harnesses", options.harness)
            self._harness: Harness = ctx.plugins["harnesses", name]()
        else:
            self._harness = ToolLoop(ToolLoop.Options())
        self._harness.check_machine(ctx)
        self._ready: asyncio.Event | None = None
        self._under_way = UnderWay()
        self._warned: set[str] = set()
        """The prefixes of metrics for which a failed conversation was a warning, and other warnings that were given."""
        self._unrolls = False
        """Whether the flow has called `samples`."""
        self._others: list[int] | None = None
        """The first step with a conversation of several samples, and its sampled tokens: all, and those in `others`."""

    @operator(tasks=Balanced(), returns=Split())
    async def converse(self, tasks: Batch) -> Batch:
        """Hold `samples` conversations of one task, and return a row for each: tokens, reward and advantage.

        `tasks` has the columns `task`, `index` and `group`; see the workload `tasks`. A group in which a conversation
        failed for good is dropped, and another task takes its place. Raises `AgentError` when no replacement is left,
        and a `breach` if only broken contracts failed the last one's conversations.
        """
        options = self.options
        self._tell_others()
        task = msgspec.convert(tasks["task"][0], Task)
        group = int(tasks["group"][0])
        for refill in range(options.refills + 1):
            if refill:
                self._ctx.count(groups_refilled=1)
                task = await self._another(group, refill)
            found = await self._group(task, group, refill, options.samples)
            held = [each for each in found if isinstance(each, Held)]
            if len(held) == len(found):
                self._report(held, "")
                self._count_others(held)
                rows = group_rows(held, task.number, group, options.advantages)
                self._ctx.metric(informative_groups=float(bool(rows["advantage"].any())))
                return rows
            self._leave_out(sum(each.sampled for each in held))
            self._tell(found, task, f"{group}/{refill}")
        failed = [each for each in found if isinstance(each, Failed)]
        what = f"{options.refills + 1} tasks of group {group} have failed in a row; the last: {failed[0].reason}"
        where = f"{self._ctx.role}, step {self._ctx.step}"
        if all(each.breach for each in failed):
            raise breach(what, where=where, remedy=failed[0].remedy)
        raise AgentError(what, where=where, remedy=failed[0].remedy)

    @operator(tasks=Balanced(), returns=Split())
    async def evaluate(self, tasks: Batch) -> Batch:
        """Hold one conversation for each held-out task. Report `eval_reward`, `eval_success` and more.

        Returns rows as `converse` does. A conversation that failed for good counts as `eval_conversations_failed` and
        in no other metric. Its row has `ended` "failed", no tokens, and NaN as reward.
        """
        options = self.options
        task, group = msgspec.convert(tasks["task"][0], Task), int(tasks["group"][0])
        (found,) = await self._group(task, group, 0, 1, options.evaluation)
        if isinstance(found, Failed):
            self._tell([found], task, f"{group}/0", "eval_")
            return failed_row(found, task.number, group)
        self._report([found], "eval_")
        return group_rows([found], task.number, group, "none")

    @operator(conversations=Split(), returns=Split())
    def samples(self, conversations: Batch) -> Batch:
        """Return one row for each sample of each conversation: a harness may begin several in one conversation."""
        self._unrolls = True
        return unrolled(conversations)

    async def _another(self, group: int, refill: int) -> Task:
        seed = self._ctx.seed_for("refill", group, refill)
        role = self.options.environment
        found = await self._ctx.call(role, "another_task", seed)
        if found.get("breach"):
            raise breach(found["failed"], where=f"role {role}", remedy=found["remedy"])
        if reason := found.get("failed") or found.get("lost"):
            raise AgentError(f"role {role} has no other task: {reason}")
        return msgspec.convert(found, Task)

    async def _group(
        self, task: Task, group: int, refill: int, rows: int, params: Mapping[str, Any] | None = None
    ) -> list[Held | Failed]:
        """Hold the conversations of a group. `params`: other sampling parameters, of an evaluation."""
        ctx, options = self._ctx, self.options
        # A task of its own in each group: calls are numbered by task, and the group that comes first differs by life.
        await asyncio.ensure_future(self._prepared())
        seed = ctx.seed_for("group", task.split, group, task.number, refill)
        attempts = Attempts(ctx, options, self._template, self._harness, {**options.sampling, **(params or {})})
        found = await asyncio.gather(
            *(
                self._shown(attempts.conversation(task, seed, number, stable_seed(seed, number)), params is not None)
                for number in range(rows)
            )
        )
        if params is None:
            self._leave_out(attempts.left_out)
        return list(found)

    async def _shown(self, conversation: Awaitable[Held | Failed], evaluates: bool) -> Held | Failed:
        """Hold a conversation, and report how many have ended in this call of the operator, and begun."""
        ctx, under_way = self._ctx, self._under_way
        ctx.progress(*under_way.count((ctx.step, evaluates), begun=1))
        try:
            return await conversation
        finally:
            ctx.progress(*under_way.count((ctx.step, evaluates), ended=1))

    def _leave_out(self, tokens: int) -> None:
        """Count sampled tokens that no trainer gets, and warn once."""
        if not tokens:
            return
        self._ctx.count(tokens_left_out=tokens)
        if "left out" not in self._warned:
            self._warned.add("left out")
            self._ctx.warn(
                f"{tokens} sampled tokens are not trained, because their attempt or their group failed, or because a "
                "client left during its turn; the metric tokens_left_out counts all"
            )

    def _count_others(self, held: list[Held]) -> None:
        """Count the sampled tokens that are trained only if the flow calls `samples`."""
        others = sum(each.sampled - each.transcripts[-1].sampled for each in held)
        if not others:
            return
        self._ctx.count(tokens_in_others=others)
        if self._others is None:
            self._others = [self._ctx.step, sum(each.sampled for each in held), others]
        last = self._ctx.steps is not None and self._ctx.step + 1 >= self._ctx.steps
        self._tell_others(last)

    def _tell_others(self, now: bool = False) -> None:
        """Warn once of conversations with several samples, unless the flow calls `samples`. The rank knows this after
        the step, and after those that begin early. `now`: this is the last step."""
        if self._others is None or self._unrolls or "others" in self._warned:
            return
        step, tokens, others = self._others
        if now or self._ctx.step > step + self.options.ahead:
            self._warned.add("others")
            role = self._ctx.role
            self._ctx.warn(
                f"conversations have several samples: {others} of {tokens} sampled tokens of a group are in the column "
                f"others, and only job.trainer.train(job.{role}.samples(rows)) in the flow trains these; the metric "
                "tokens_in_others counts them"
            )

    async def _prepared(self) -> None:
        """Set the harness up, before the first conversation of this rank."""
        if self._ready is None:
            self._ready = asyncio.Event()
            await self._harness.setup(self._ctx)
            self._ready.set()
        await self._ready.wait()

    def _report(self, held: list[Held], prefix: str) -> None:
        for each in held:
            values = {"reward": each.reward.value, "turns": each.turns}
            values |= {"truncated": float(each.ended == "truncated")}
            if each.reward.success is not None:
                values["success"] = float(each.reward.success)
            values |= {f"reward_{name}": value for name, value in each.reward.parts.items()}
            self._ctx.metric(**{f"{prefix}{name}": value for name, value in values.items()})
            self._ctx.count(**{f"{prefix}conversations": 1, f"{prefix}sampled_tokens": each.sampled})

    def _tell(self, found: list[Held | Failed], task: Task, group: str, prefix: str = "") -> None:
        """Count the failed conversations of a group, and say why they failed."""
        failed = {number: each for number, each in enumerate(found) if isinstance(each, Failed)}
        ctx = self._ctx
        ctx.count(**{f"{prefix}conversations_failed": len(failed)})
        for number, each in failed.items():
            kind = "held-out task" if prefix else "task"
            text = f"conversation {number} of {kind} {task.number}, {each.attempts} attempts: {each.reason}"
            ctx.log.warning("failed: %s", text)
            ctx.record(**{f"failed conversation {task.split}/{group}/{number}": text})
            if prefix not in self._warned:
                self._warned.add(prefix)
                left_out = f"; {prefix}* are means over the others" if prefix else ""
                ctx.warn(f"{text}{left_out}; the log has further ones")

    def teardown(self) -> None:
        """See `Workload.teardown`."""
        asyncio.run(self._harness.close())


def _has_harness(options: AgentOptions, listed: Mapping[tuple[str, str], Any]) -> bool:
    """Return whether the agent has a harness that the job file lists."""
    if options.harness is None:
        return any(kind == "harnesses" for kind, _ in listed)
    return options.harness != DEFAULT_HARNESS


def _load_template(options: AgentOptions, folder: Path) -> TokenTemplate:
    load: Callable[..., TokenTemplate]
    if options.template is not None:
        load = options.template.resolve()
        return load(folder)
    load = import_module("rolemesh_agents.templates").load_template
    return load(folder, options.reasoning)
