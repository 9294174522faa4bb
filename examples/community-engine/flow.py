"""Darts are thrown at a square, and those that hit the circle in it are counted."""

import rolemesh


@rolemesh.flow
def estimate(job):
    job.counter.count(job.thrower.throw())
