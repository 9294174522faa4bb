"""The flow: which role is called, and where the values go. rolemesh traces it once, before the job starts."""

import rolemesh


@rolemesh.flow
def hello(job):
    numbers = job.source.numbers()
    job.sink.add(numbers)
