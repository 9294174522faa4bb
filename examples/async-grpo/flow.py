"""Asynchronous GRPO: generate ahead of the trainer within a bound, and evaluate beside both."""

from rolemesh import AtMost, flow


@flow
def grpo(job, lag: int = 2, every: int = 3):
    """`lag` is the largest number of updates by which the rollout's weights may be old; 0 is on-policy.

    `every` is the number of steps from one evaluation to the next.
    """
    samples = job.rollout.generate(job.data.next())
    scored = job.reward.advantages(job.reward.score(samples))
    job.trainer.train(scored)
    job.rollout.load_weights(job.trainer.weights(), lag=AtMost(lag))
    evaluate(job, every)


def evaluate(job, every: int):
    """One greedy answer to each held-out question, by roles that training does not wait for."""
    job.examiner.load_weights(job.trainer.weights(every=every, at=0), every=every, at=0)
    answers = job.examiner.evaluate(job.data.held_out(every=every, at=0), every=every, at=0)
    job.judge.evaluate(answers, every=every, at=0)
