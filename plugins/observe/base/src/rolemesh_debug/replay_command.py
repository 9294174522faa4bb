"""`rolemesh replay-op`: run a saved call."""

from __future__ import annotations

import pdb
import tempfile
import traceback
from pathlib import Path
from typing import Annotated

import typer

from rolemesh.cli.output import print_text
from rolemesh.errors import EXIT_FAILED
from rolemesh_debug.describing import described
from rolemesh_debug.failed_calls import About, FailedCall, read
from rolemesh_debug.replay import Replay, inputs_of, prepare, require_own
from rolemesh_runtime.operator_failure import summarize, user_traceback

__all__ = ["command"]

OURS = f"{Path(__file__).parent}/"


def command(
    file: Annotated[Path, typer.Argument(help="A file from the folder failures of a run.", show_default=False)],
    debugger: Annotated[bool, typer.Option("--pdb", help="Start the debugger where the operator fails.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not restore the workload's state.")] = False,
    trust_pickles: Annotated[
        bool, typer.Option("--trust-pickles", help="Unpickle inputs that have no other form. This can run any code.")
    ] = False,
) -> None:
    """Run an operator that failed once more, alone, with the inputs that the extension debug has saved.

    The command sets the workload up in this process, with the options of the run's job file. It restores the newest
    checkpoint on disk from before the failure. A collective role runs as one rank. Calls of other roles fail. The run's
    folder stays as it is. Debuggers of editors can start this command.

    Exit code: 0 if the operator now succeeds; 1 if it fails; 2 if it cannot be run.

    Examples:

      rolemesh replay-op runs/grpo/failures/trainer-0-step-7-train.safetensors

      rolemesh replay-op runs/grpo/failures/trainer-0-step-7-train.safetensors --pdb
    """
    call = read(file)
    require_own(file)
    _introduce(call)
    inputs = inputs_of(call, file, trusted=trust_pickles)
    with tempfile.TemporaryDirectory(prefix="rolemesh-replay-") as scratch:
        replay = prepare(call.about, inputs, file.resolve().parent.parent, Path(scratch), restore=not fresh)
        print_text(f"  its state: {replay.state}\n")
        try:
            failed = _run(replay, call.about, debugger=debugger)
        finally:
            replay.workload.teardown()
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _introduce(call: FailedCall) -> None:
    about = call.about
    print_text(f"{about.role}.{about.operator}, rank {about.rank}, step {about.step} of {about.job}")
    print_text(f"  failed with: {about.error}")
    for name, text in about.inputs.items():
        print_text(f"  {name}: {text}" + (" (pickled)" if name in call.pickles else ""))


def _run(replay: Replay, about: About, *, debugger: bool) -> bool:
    """Run the operator and print the outcome; return True if it fails."""
    try:
        result = replay.run()
    except Exception as error:
        print_text(user_traceback(error, OURS) or "".join(traceback.format_exception(error)), err=True)
        again = summarize(error).splitlines()[:1] == about.error.splitlines()[:1]
        print_text("It fails again." if again else "It fails, in another way than in the job.")
        if debugger:
            pdb.post_mortem(error.__traceback__)
        return True
    print_text(f"It succeeds: it returns {described(result)}.")
    return False
