"""Tasks go to agents, which call a sandbox as often as they like; a judge counts the solved ones."""

from rolemesh import flow


@flow
def solve(job):
    job.judge.count(job.agent.solve(job.tasks.draw(), calls=[job.sandbox]))
