"""The GRPO example with a rollout in two halves: one makes the KV caches, the other fetches them and generates."""

from rolemesh import flow


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
    evaluate(job, at=job.steps - 1)


def evaluate(job, at: int):
    """One greedy answer to each held-out question, in step `at` only."""
    questions = job.prefill.prefill(job.data.held_out(every=job.steps, at=at), every=job.steps, at=at)
    answers = job.decode.evaluate(questions, every=job.steps, at=at)
    job.reward.evaluate(answers, every=job.steps, at=at)
