"""GRPO over conversations: deal out hunts, hold conversations, train, hand the new weights back."""

from rolemesh import flow


@flow
def agent(job, lag: int = 0):
    """`lag` is how many steps old the rollout's weights are: 0 is on-policy."""
    evaluate(job, at=0)
    rows = job.agent.converse(job.tasks.next(), calls=[job.rollout, job.environment])
    job.trainer.train(rows)
    job.rollout.load_weights(job.trainer.weights(), lag=lag)
    if job.steps:
        evaluate(job, at=job.steps - 1)


def evaluate(job, at: int):
    """One greedy conversation for each held-out hunt, in step `at` only."""
    every = job.steps or 50
    tasks = job.tasks.held_out(every=every, at=at)
    job.agent.evaluate(tasks, every=every, at=at, calls=[job.rollout, job.environment])
