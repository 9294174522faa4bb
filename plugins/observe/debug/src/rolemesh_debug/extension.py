"""The extension `debug`: an operator that fails reports its inputs, and they are saved."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from types import GeneratorType
from typing import Any, ClassVar

from pydantic import BaseModel

from rolemesh.graph.logical import OpCall
from rolemesh_debug.describing import described
from rolemesh_debug.failed_calls import FAILURES_DIR, About, file_name, make_room, write
from rolemesh_debug.options import DebugOptions
from rolemesh_durable.api.extensions import Extension, Rank, RankExtension
from rolemesh_runtime.operator_failure import summarize

__all__ = ["Debug"]

LOG = logging.getLogger(__name__)


class Debug(Extension):
    """Reports and saves the inputs of an operator that raises. It costs nothing until then."""

    Options: ClassVar[type[BaseModel]] = DebugOptions
    options: DebugOptions

    def in_rank(self, rank: Rank) -> RankExtension:
        """Take part in every rank."""
        return FailureReport(rank, self.options)


class FailureReport(RankExtension):
    """The part in a rank."""

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
        LOG.error("%s failed; run it alone with: rolemesh replay-op %s", op.label, folder / name)
        without = f" without {', '.join(about.missing)}" if about.missing else ""
        return f"saved{without} for 'rolemesh replay-op': {FAILURES_DIR}/{name}"
