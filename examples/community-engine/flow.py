"""A flow that throws darts at a square and counts those that hit the circle in it."""

import rolemesh


@rolemesh.flow
def estimate(job):
    job.counter.count(job.thrower.throw())
