"""Pre-training: windows of a text, next tokens, and from time to time the loss on text that is held out."""

from rolemesh import flow


@flow
def pretrain(job, evaluate_every: int = 25):
    """`evaluate_every`: so often, in steps, held-out text is judged, before the step's update."""
    when = {"every": evaluate_every, "at": evaluate_every - 1}
    job.text.judge(job.trainer.logprobs(job.text.held_out(**when), **when), **when)
    job.trainer.train(job.text.next())
