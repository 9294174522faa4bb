"""The flow of `deepspeed_step`."""

from rolemesh import flow


@flow
def train(job):
    job.trainer.train(job.data.next())
