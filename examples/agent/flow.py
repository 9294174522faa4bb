"""GRPO over conversations: deal out hunts, hold conversations, train, hand the new weights back."""

from rolemesh import AtMost, flow


@flow
def agent(job, lag: int = 0, first: int = 0):
    """`lag` is how many steps old the rollout's weights are: 0 is on-policy.

    With `first` above 0, a step trains the groups that are finished first, at most that many steps late.
    """
    evaluate(job, at=0)
    rows = job.agent.converse(job.tasks.next(), calls=[job.rollout, job.environment])
    job.trainer.train(rows, lag=AtMost(first))
    job.rollout.load_weights(job.trainer.weights(), lag=lag)
    if job.steps:
        evaluate(job, at=job.steps - 1)


def evaluate(job, at: int):
    """One greedy conversation for each held-out hunt, in step `at` only."""
    every = job.steps or 50
    tasks = job.tasks.held_out(every=every, at=at)
    job.agent.evaluate(tasks, every=every, at=at, calls=[job.rollout, job.environment])
