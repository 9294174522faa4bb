"""DAPO: GRPO that replaces questions without an advantage until the batch is full."""

from rolemesh import flow


@flow
def dapo(job, rounds: int = 3):
    """Each round asks as many new questions as the batch still lacks (Yu et al., arXiv:2503.14476, section 3.2)."""
    evaluate(job, at=0)
    job.pool.begin(job.data.next())
    for _ in range(rounds):
        samples = job.rollout.generate(job.pool.ask())
        job.pool.keep(job.reward.advantages(job.reward.score(samples)))
    job.trainer.train(job.pool.batch())
    job.rollout.load_weights(job.trainer.weights())
    evaluate(job, at=job.steps - 1)


def evaluate(job, at: int):
    """One greedy answer to each held-out question, in step `at` only."""
    answers = job.rollout.evaluate(job.data.held_out(every=job.steps, at=at), every=job.steps, at=at)
    job.reward.evaluate(answers, every=job.steps, at=at)
