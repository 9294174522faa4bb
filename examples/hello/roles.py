"""Two roles in plain Python: one makes numbers, the other adds them up."""

import rolemesh


def numbers(ctx: rolemesh.RankContext) -> rolemesh.Batch:
    """Make eight numbers per step."""
    first = 8 * ctx.step
    return rolemesh.Batch({"number": list(range(first, first + 8))})


class Sum:
    """Adds up the numbers that this rank receives. With two ranks, each gets half of the rows."""

    def __init__(self, ctx: rolemesh.RankContext, start: int = 0) -> None:
        self.ctx = ctx
        self.total = start

    def add(self, numbers: rolemesh.Batch) -> None:
        """Add this rank's part of the numbers to its sum."""
        self.total += sum(numbers["number"])
        self.ctx.count(rows=numbers.rows, total=sum(numbers["number"]))
        self.ctx.log.info("step %d: got %s, my sum is %d", self.ctx.step, numbers["number"], self.total)

    def snapshot(self) -> dict[str, int]:
        return {"total": self.total}

    def restore(self, state: dict[str, int]) -> None:
        self.total = state["total"]
