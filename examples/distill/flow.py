"""Distillation: text, what the teacher holds for likely after each token of it, an update of the student."""

from rolemesh import flow


@flow
def distill(job):
    """The teacher has no state, so it goes ahead as far as credits allow, while the student learns."""
    job.student.train(job.teacher.judge(job.text.next()))
