"""Online learning from a replay buffer: the simulator adds rows, and the learner samples them."""

from rolemesh import flow


@flow
def online(job):
    job.replay.add(job.simulator.run())
    job.learner.fit(job.replay.sample())
