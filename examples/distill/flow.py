"""Distillation: text, the teacher's likeliest next tokens, and an update of the student."""

from rolemesh import flow


@flow
def distill(job):
    """The teacher has no state, so it works ahead, as far as credits allow, while the student learns."""
    job.student.train(job.teacher.judge(job.text.next()))
