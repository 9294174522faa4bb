"""``rolemesh run --chaos``: a run with failures and, with ``--chaos-compare``, one without, which must end alike."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from rolemesh.api.command import RunOption
from rolemesh.errors import EXIT_DONE, EXIT_FAILED, JobFileError, nearest
from rolemesh.job.engine import RunHandle
from rolemesh.job.run import JobRun
from rolemesh.placement.nodes import parse_nodes
from rolemesh_durable.api.jobs import Run, options_in

__all__ = ["Chaos", "ChaosOptions"]


class ChaosOptions(BaseModel, extra="forbid"):
    """Options of ``rolemesh run``."""

    chaos: str | None = Field(
        default=None,
        description="Rehearse: inject seeded failures, e.g. 'kills=10,seed=7,targets=rank,agent'. Targets: "
        "rank, agent, master, node, stop (SIGSTOP), disk, zygote, full, stall, clock; also trainer/1 (one rank), "
        "trainer/* (a rank of the role), stop:trainer/1, child:box/* (a process that the rank started), agent:NAME, "
        "node:NAME. A report follows at the end.",
        json_schema_extra={"metavar": "SPEC"},
    )
    chaos_compare: bool = Field(
        default=False, description="Then run it without failures; fail unless both end in exactly the same state."
    )


class Chaos(RunOption):
    """Rehearses a job's failures while it runs."""

    Options: ClassVar[type[BaseModel]] = ChaosOptions
    help: ClassVar[str] = "Rehearse failures."

    def run(self, run: JobRun) -> int:
        """Run the job with failures, and then without them for comparison."""
        from rolemesh_rehearsal.account import account, differences, work
        from rolemesh_rehearsal.injector import Injector
        from rolemesh_rehearsal.spec import parse

        if self.options.chaos is None:
            what = "--chaos-compare compares a rehearsal with an undisturbed run"
            raise JobFileError(what, remedy="add --chaos kills=5")
        rehearsal = parse(self.options.chaos)
        _check(run, rehearsal)
        finish = run.finish

        def with_failures(run: JobRun, handle: RunHandle) -> int:
            described: Any = getattr(run.options, "nodes", None)
            injector = Injector(rehearsal, run.run_dir, len(parse_nodes(described).nodes) if described else None)
            injector.start()
            try:
                code = finish(run, handle)
            finally:
                injected = injector.stop()
                print(account(injected, rehearsal.kills, handle.result() or {}, injector.not_hit()))
            if code == EXIT_DONE:
                injector.check()
            return code

        options = run.options.model_copy(update={"rehearsed": True})
        code = dataclasses.replace(run, options=options, finish=with_failures).run()
        result = Run(run.run_dir).result()
        if not self.options.chaos_compare or code != EXIT_DONE or result is None:
            return code
        calm = dataclasses.replace(run, job=run.job.again([f"name={run.job.job.spec.name}-undisturbed"]))
        code = calm.run()
        other = Run(calm.run_dir).result()
        if code != EXIT_DONE or other is None:
            return code
        unequal = differences(result, other)
        if unequal:
            print("error: the run with failures ended differently:\n  " + "\n  ".join(unequal), file=sys.stderr)
            return EXIT_FAILED
        print("".join(f"{line}\n" for line in work(result, other)), end="")
        if not any(result["state_sha256"].values()):
            print(
                "warning: both runs have ended, and nothing was compared: no role keeps a state\n"
                "  → give a class that does snapshot() and restore()",
                file=sys.stderr,
            )
            return EXIT_DONE
        equal = "the run with failures ended exactly as the undisturbed one: state_sha256 is equal for every role"
        print(equal, flush=True)  # before what other options say on stderr
        return EXIT_DONE


def _check(run: JobRun, rehearsal: Any) -> None:
    """Raise `JobFileError` for a rehearsal that is impossible."""
    job: Any = run.job.job
    options: Any = run.options
    if run.detached or "rehearsed" not in type(options).model_fields:
        raise JobFileError(
            "--chaos disturbs a job that this command watches", remedy="leave --detach and --engine inline out"
        )
    if not job.spec.failover:
        raise JobFileError(
            "this job has no failover level, so the first failure ends it",
            where=job.where(("failover",)),
            remedy="add failover: [{use: process}, {use: node}, {use: job}]",
        )
    sizes = {name: int(role.world_size) for name, role in job.spec.roles.items()}
    for role, rank in rehearsal.ranks:
        if role not in sizes:
            raise JobFileError(f"the job has no role {role!r}", where="--chaos", remedy=nearest(role, sizes))
        if rank is not None and rank >= sizes[role]:
            what = f"role {role} has {sizes[role]} ranks, and none of the number {rank}"
            raise JobFileError(what, where="--chaos", remedy=f"name one of {role}/0 to {role}/{sizes[role] - 1}")
    if "node" in rehearsal.kinds and "nodes" not in type(options).model_fields:
        raise JobFileError(
            "the nodes of a Ray cluster are not ours to take away",
            where="--chaos",
            remedy="rehearse it with --backend local --nodes 3x(cpu=2), or take a node away yourself",
        )
    if "node" in rehearsal.kinds and len(parse_nodes(options.nodes or "(cpu=1)").nodes) < 2:
        raise JobFileError("the only node cannot be lost in a rehearsal", remedy="leave node out of its targets")
    after_s = options_in(run.job.selection).hang.after_s if "stop" in rehearsal.kinds else 0.0
    if after_s is None or after_s > 60:
        raise JobFileError(
            f"a stopped rank is noticed after hang.after_s = {after_s} s",
            where=job.where(("engine", "options", "hang", "after_s")),
            remedy="add engine.options.hang.after_s=5 for the rehearsal, or leave `stop` out of its targets",
        )
