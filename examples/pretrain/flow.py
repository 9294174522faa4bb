"""Pre-training: windows of a text, next tokens, and at intervals the loss on held-out text."""

from rolemesh import flow


@flow
def pretrain(job, evaluate_every: int = 25):
    """`evaluate_every` is the number of steps between evaluations on held-out text, which come before the step's
    update.
    """
    when = {"every": evaluate_every, "at": evaluate_every - 1}
    job.text.judge(job.trainer.logprobs(job.text.held_out(**when), **when), **when)
    job.trainer.train(job.text.next())
