"""Clicks come, the model learns from each, and every few steps the trainer exports it to the server."""

from rolemesh import flow


@flow
def online(job, every: int = 5):
    job.trainer.learn(job.features.make(job.clicks.next()))
    job.server.load(job.trainer.publish(every=every), every=every)
