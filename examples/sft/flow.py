"""Supervised fine-tuning in one line: each step trains on the next sentences."""

from rolemesh import flow


@flow
def sft(job):
    job.trainer.train(job.data.next())
