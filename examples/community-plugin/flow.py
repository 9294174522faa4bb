"""Online learning from a replay buffer: what the simulator does goes in, what the learner learns from comes out."""

from rolemesh import flow


@flow
def online(job):
    job.replay.add(job.simulator.run())
    job.learner.fit(job.replay.sample())
