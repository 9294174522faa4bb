"""Tasks go to agents, which call a sandbox as often as they like; what they have solved goes to a judge."""

from rolemesh import flow


@flow
def solve(job):
    job.judge.count(job.agent.solve(job.tasks.draw(), calls=[job.sandbox]))
