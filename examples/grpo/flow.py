"""GRPO: ask, answer several times, verify, compare within the group, train, hand the new weights back."""

from rolemesh import flow

EVERY = 50
"""Steps from one evaluation to the next, in a job without an end."""


@flow
def grpo(job, lag: int = 0):
    """`lag` is how many steps old the rollout's weights are: 0 is on-policy, 1 generates while the trainer trains."""
    evaluate(job, at=0)
    samples = job.rollout.generate(job.data.next())
    scored = job.reward.advantages(job.reward.score(samples))
    job.trainer.train(scored)
    job.rollout.load_weights(job.trainer.weights(), lag=lag)
    if lag and job.steps:  # the last evaluation is of the last weights
        job.rollout.load_weights(job.trainer.weights(every=job.steps), every=job.steps)
    if job.steps:
        evaluate(job, at=job.steps - 1)


def evaluate(job, at: int):
    """One greedy answer to each held-out question, in step `at` only; without an end, in every 50th step."""
    every = job.steps or EVERY
    questions = job.data.held_out(every=every, at=at)
    answers = job.rollout.evaluate(questions, every=every, at=at)
    job.reward.evaluate(answers, every=every, at=at)
