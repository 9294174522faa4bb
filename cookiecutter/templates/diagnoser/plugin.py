"""The diagnoser: what a failure's message, and how often it has come on one node, say about whose fault it is."""

import re

from pydantic import BaseModel, Field
from rolemesh import Diagnoser, Failure, JobView, Verdict, hookimpl

__all__ = ["{{ cookiecutter.__class }}"]


class {{ cookiecutter.__class }}(Diagnoser):
    """Judges by the message: broken hardware, or hopeless. Of everything else it says nothing."""

    class Options(BaseModel, frozen=True, extra="forbid"):
        """Options in the job file."""

        hardware: str = Field(default="uncorrectable|Xid", description="Regular expression: the node is at fault.")
        hopeless: str = Field(default="quota exceeded", description="Regular expression: trying again cannot help.")
        times: int = Field(default=1, ge=1, description="Failures of the hardware on a node that make it suspect.")

    options: Options

    @hookimpl
    def diagnose(self, failure: Failure, view: JobView) -> Verdict | None:
        """The verdict; None lets the next diagnoser, and then the levels, judge."""
        if re.search(self.options.hopeless, failure.message):
            return Verdict("user", f"nothing can help: {failure.message}", fatal=True)
        if not re.search(self.options.hardware, failure.message):
            return None
        there = [one for one in (*view.failures, failure) if one.node == failure.node]
        found = [one for one in there if re.search(self.options.hardware, one.message)]
        if len(found) < self.options.times:
            return None
        return Verdict("hardware", f"{len(found)} of the hardware on {failure.node}: {failure.message}")
