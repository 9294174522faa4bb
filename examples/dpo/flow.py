"""DPO: pairs of answers, the reference's log-probabilities, an update; held-out pairs before and after."""

from rolemesh import flow


@flow
def dpo(job):
    """The flow generates nothing: the pairs exist before training."""
    judge(job, at=0)
    job.trainer.train(job.pairs.join(job.reference.logprobs(job.pairs.next())))
    judge(job, at=job.steps - 1)


def judge(job, at: int):
    """Report for held-out pairs whether the trainer prefers the right answer more than the reference does, in step `at`
    only.
    """
    when = {"every": job.steps, "at": at}
    # The trainer writes the same column: what the reference said goes along under another name.
    kept = job.pairs.keep(job.reference.logprobs(job.pairs.held_out(**when), **when), **when)
    job.pairs.judge(job.trainer.logprobs(kept, **when), **when)
