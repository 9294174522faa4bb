"""DPO: pairs of answers, what the reference says of them, an update; held-out pairs before and after."""

from rolemesh import flow


@flow
def dpo(job):
    """Nothing is generated: the pairs are there before."""
    judge(job, at=0)
    job.trainer.train(job.pairs.join(job.reference.logprobs(job.pairs.next())))
    judge(job, at=job.steps - 1)


def judge(job, at: int):
    """Which answer of each held-out pair the trainer holds for likelier than the reference does, in step `at` only."""
    when = {"every": job.steps, "at": at}
    # The trainer writes the same column: what the reference said goes along under another name.
    kept = job.pairs.keep(job.reference.logprobs(job.pairs.held_out(**when), **when), **when)
    job.pairs.judge(job.trainer.logprobs(kept, **when), **when)
