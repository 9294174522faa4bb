"""A role that answers, and one that grades with the plugin that the job lists under `plugins`."""

from rolemesh import Batch, RankContext, flow


def answer(ctx: RankContext) -> Batch:
    """Four answers a step, which become shorter."""
    return Batch({"answer": ["word " * max(1, 20 - ctx.step - row) for row in range(4)]})


class Grading:
    """Grades answers with the grader that the job names."""

    def __init__(self, ctx: RankContext, grader: str) -> None:
        self.ctx = ctx
        self.grader = ctx.plugins["{{ cookiecutter.__key }}", grader]()

    def grade(self, answers: Batch) -> None:
        for text in answers["answer"]:
            self.ctx.metric(grade=self.grader.grade(text))


@flow
def grading(job):
    """Called once, to see what goes where; what the calls return are handles."""
    job.grading.grade(job.answering.answer())
