"""`rolemesh run`: run a job file, on Ray or without it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["command"]


def command(
    job: Annotated[Path, typer.Argument(help="The job file.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides, e.g. steps=5 roles.trainer.world_size=4.", show_default=False)
    ] = None,
    backend: Annotated[
        Literal["ray", "local"], typer.Option(help="Where master and agents live: on Ray, or here without it.")
    ] = "ray",
    address: Annotated[
        str | None,
        typer.Option(help="Join the Ray at this address ('auto' finds one) instead of starting one.", metavar="ADDR"),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the job is running; its master goes on alone.")
    ] = False,
    inline: Annotated[
        bool, typer.Option("--inline", help="Run everything in this process, so that a debugger works.")
    ] = False,
    nodes: Annotated[
        str | None,
        typer.Option(help="With --backend local: emulate these nodes, e.g. '2x(cpu=1)'.", metavar="SPEC"),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            help="Start from the newest intact snapshot of this job or run folder (or from this step-N folder of one).",
            metavar="JOB|PATH",
        ),
    ] = None,
    trust_pickles: Annotated[
        bool,
        typer.Option(
            "--trust-pickles",
            help="With --resume: read pickled objects in the snapshot too, which runs whatever its files say. Only if "
            "nobody but you could write them.",
        ),
    ] = False,
    chaos: Annotated[
        str | None,
        typer.Option(
            help="Rehearse: inject seeded failures, e.g. 'kills=10,seed=7,targets=rank,agent,master'. Targets: rank, "
            "agent, master, node, stop (SIGSTOP), disk, zygote, full, stall, clock. A report follows at the end.",
            metavar="SPEC",
        ),
    ] = None,
    chaos_compare: Annotated[
        bool, typer.Option("--chaos-compare", help="Afterwards run it undisturbed; fail unless both end exactly alike.")
    ] = False,
    locked: Annotated[
        bool, typer.Option("--locked", help="Refuse plugins other than those of the job's lock (`plugins lock`).")
    ] = False,
    runs_dir: Annotated[
        Path | None, typer.Option(help="Where runs/<name>/ is made.", envvar="ROLEMESH_RUNS", show_default="./runs")
    ] = None,
) -> None:
    """Run a job: validate, trace, plan, start, watch.

    Ctrl-C ends the job. Everything about the run is kept in runs/NAME/.

    Exit code: 0 done, 1 the job failed, 2 it could not start (nothing was started), 130 interrupted.

    Examples:

      rolemesh run examples/hello/job.yaml

      rolemesh run examples/sft/job.yaml steps=10 --backend local

      rolemesh run examples/grpo/job.yaml --address auto --detach

      rolemesh run examples/grpo/job.yaml --resume grpo steps=30 roles.trainer.world_size=4

      rolemesh run job.yaml --backend local --chaos kills=10,seed=7 --chaos-compare
    """
    from rolemesh.driver import RunOptions, run

    options = RunOptions(
        job=job,
        overrides=tuple(overrides or ()),
        backend="inline" if inline else backend,
        address=address,
        detach=detach,
        nodes=nodes,
        runs_dir=runs_dir,
        resume=resume,
        trust_pickles=trust_pickles,
        chaos=chaos,
        compare=chaos_compare,
        locked=locked,
    )
    raise typer.Exit(run(options))
