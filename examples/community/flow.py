"""Tasks go through a replay buffer to agents, which call a sandbox; a judge counts the solved ones."""

from rolemesh import flow


@flow
def solve(job):
    job.replay.add(job.tasks.draw())
    job.judge.count(job.agent.solve(job.replay.sample(), calls=[job.sandbox]))
