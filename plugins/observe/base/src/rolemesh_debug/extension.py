"""The extension `debug`: a failing operator reports and saves its inputs, and a rank is profiled on request."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from types import GeneratorType
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from rolemesh.graph.logical import OpCall
from rolemesh_debug.describing import described
from rolemesh_debug.failed_calls import FAILURES_DIR, About, file_name, make_room, write
from rolemesh_debug.options import DebugOptions
from rolemesh_debug.profile_messages import ProfileOrder
from rolemesh_debug.profiler import Profiler
from rolemesh_durable.api.extensions import Extension, ExtensionMessage, Rank, RankExtension
from rolemesh_runtime.operator_failure import summarize

if TYPE_CHECKING:
    from rolemesh_debug.inspections import Orders
    from rolemesh_durable.api.extensions import MasterExtension, MasterParts, MasterShell, ShellPart

__all__ = ["Debug"]

LOG = logging.getLogger(__name__)


class Debug(Extension):
    """Reports and saves the inputs of an operator that raises, and profiles ranks. It costs nothing until then."""

    Options: ClassVar[type[BaseModel]] = DebugOptions
    options: DebugOptions

    def __init__(self, options: BaseModel) -> None:
        super().__init__(options)
        self._orders: Orders = {}

    def in_rank(self, rank: Rank) -> RankExtension:
        """Take part in every rank."""
        return DebuggedRank(rank, self.options)

    def in_master(self, parts: MasterParts) -> MasterExtension:
        """Send orders for profiles to ranks."""
        from rolemesh_debug.inspections import Profiles  # imports the master's modules, which ranks do without

        return Profiles(parts, self._orders)

    def in_shell(self, shell: MasterShell) -> ShellPart:
        """Answer the requests of clients."""
        from rolemesh_debug.inspections import Inspections

        return Inspections(shell, self._orders)


class DebuggedRank(RankExtension):
    """The part in a rank: reports about failures, and the profiler."""

    messages = (ProfileOrder,)

    def __init__(self, rank: Rank, options: DebugOptions) -> None:
        self._report, self._profiler = FailureReport(rank, options), Profiler(rank)

    def wrap(self, op: OpCall, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return `method`; its exceptions get the inputs as a note."""
        return self._report.wrap(op, method)

    def heard(self, message: ExtensionMessage) -> None:
        """Take an order for a profile."""
        if isinstance(message, ProfileOrder):
            self._profiler.order(message)

    def before_step(self, step: int) -> None:
        """Begin a profile that is ordered."""
        self._profiler.before_step(step)

    def step_done(self, step: int, held: bool) -> None:
        """End the profile after its last step."""
        self._profiler.step_done()

    def steps_end(self, finished: int) -> None:
        """End a profile that has fewer steps than ordered."""
        self._profiler.end()


class FailureReport:
    """Adds the inputs of a failing operator to its exception, and saves them."""

    def __init__(self, rank: Rank, options: DebugOptions) -> None:
        self._rank, self._options = rank, options

    def wrap(self, op: OpCall, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return `method`; its exceptions get the inputs as a note."""

        def chunks(result: Iterator[Any], arguments: Mapping[str, Any]) -> Iterator[Any]:
            try:
                yield from result
            except Exception as error:
                self._report(op, arguments, error)
                raise

        def run(**arguments: Any) -> Any:
            try:
                result = method(**arguments)
            except Exception as error:
                self._report(op, arguments, error)
                raise
            return chunks(result, arguments) if type(result) is GeneratorType else result

        return run

    def _report(self, op: OpCall, arguments: Mapping[str, Any], error: Exception) -> None:
        """Add the note. The lines are indented, so that a diagnoser compares the exception without them."""
        inputs = {name: described(value) for name, value in arguments.items()}
        lines = [f"{name}: {text}" for name, text in inputs.items()] or ["it takes no inputs"]
        lines += [self._saved(op, arguments, inputs, error)] if self._options.max_mb else []
        error.add_note("\n".join(f"  {line}" for line in lines))

    def _saved(self, op: OpCall, arguments: Mapping[str, Any], inputs: dict[str, str], error: Exception) -> str:
        """Save the call; return a line about it. Never raises."""
        ctx = self._rank.ctx
        name = file_name(ctx.role, ctx.rank, ctx.step, op.operator)
        folder = ctx.run_dir / FAILURES_DIR
        about = About(
            ctx.job, ctx.role, ctx.rank, ctx.world_size, ctx.step, op.operator, summarize(error), inputs,
            base=str(ctx.base), generation=ctx.generation,
        )  # fmt: skip
        try:
            if not make_room(folder, name, self._options.max_files, time.time()):
                return f"not saved: {FAILURES_DIR}/ has the inputs of {self._options.max_files} failures of this minute"
            about = write(folder / name, about, arguments, int(self._options.max_mb * 1_000_000))
        except Exception as problem:  # the disk is full, or a tensor's GPU is broken: the failure itself matters more
            LOG.warning("the inputs of %s cannot be saved", op.label, exc_info=problem)
            return f"not saved: {type(problem).__name__}: {problem}"
        without = f" without {', '.join(about.missing)}" if about.missing else ""
        return f"saved{without}; to run it alone: rolemesh replay-op {shlex.quote(str(folder / name))}"
