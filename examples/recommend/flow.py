"""Servers look up the rows of the step's clicks, workers take clicks by demand, servers apply the gradients."""

from rolemesh import flow


@flow
def recommend(job, lag: int = 1):
    clicks = job.clicks.next()
    rows = job.ps.lookup(clicks)
    job.ps.update(job.worker.train(clicks, rows), lag=lag)
