"""The GRPO example with a rollout in two halves: one makes the KV caches, the other fetches them and generates."""

from rolemesh import flow

EVERY = 50
"""Steps from one evaluation to the next, in a job without an end."""


@flow
def grpo(job, lag: int = 0):
    """`lag` is how many steps old both halves' weights are: 0 is on-policy."""
    evaluate(job, at=0)
    samples = job.decode.generate(job.prefill.prefill(job.data.next()))
    scored = job.reward.advantages(job.reward.score(samples))
    job.trainer.train(scored)
    weights = job.trainer.weights()
    job.prefill.load_weights(weights, lag=lag)
    job.decode.load_weights(weights, lag=lag)
    if job.steps:
        evaluate(job, at=job.steps - 1)


def evaluate(job, at: int):
    """One greedy answer to each held-out question, in step `at` only; without an end, in every 50th step."""
    every = job.steps or EVERY
    questions = job.prefill.prefill(job.data.held_out(every=every, at=at), every=every, at=at)
    answers = job.decode.evaluate(questions, every=every, at=at)
    job.reward.evaluate(answers, every=every, at=at)
