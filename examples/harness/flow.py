"""GRPO over conversations that a program holds: deal out questions, hold conversations, train, update the rollout."""

from rolemesh import flow


@flow
def harness(job, lag: int = 0):
    """`lag` is how many steps old the rollout's weights are: 0 is on-policy."""
    evaluate(job, at=0)
    rows = job.agent.converse(job.tasks.next(), calls=[job.rollout, job.environment])
    job.trainer.train(rows)
    job.rollout.load_weights(job.trainer.weights(), lag=lag)
    if job.steps:
        evaluate(job, at=job.steps - 1)


def evaluate(job, at: int):
    """One greedy conversation for each held-out question, in step `at` only."""
    every = job.steps or 50
    questions = job.tasks.held_out(every=every, at=at)
    job.agent.evaluate(questions, every=every, at=at, calls=[job.rollout, job.environment])
