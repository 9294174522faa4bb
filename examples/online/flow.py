"""Clicks come, the model learns from each, and every few steps the servers of the tables export it for answers."""

from rolemesh import flow


@flow
def online(job, every: int = 5):
    events = job.features.make(job.clicks.next())
    job.ps.update(job.trainer.learn(events, job.ps.lookup(events)))
    job.server.load(job.ps.publish(every=every), job.trainer.newest(every=every), every=every)
