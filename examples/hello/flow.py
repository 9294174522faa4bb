"""The flow: what is called on which role, and where the values go. It is traced once, before the job starts."""

import rolemesh


@rolemesh.flow
def hello(job):
    numbers = job.source.numbers()
    job.sink.add(numbers)
