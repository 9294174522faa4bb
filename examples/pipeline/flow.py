"""A transformer in three roles: micro-batches go forward from stage to stage, gradients come back, in one step."""

from rolemesh import flow
from rolemesh_torch import passes


@flow
def pipeline(job, schedule: str = "1f1b", micro_batches: int = 4):
    """`schedule` is the order in which a stage passes micro-batches: `1f1b` or `gpipe`.

    A role runs its calls in the flow's order, so the order of this loop is the schedule. Both give the same weights,
    bit for bit.
    """
    stages = [job.front, job.middle, job.back]
    rows, values, gradients = {}, {}, {}
    for stage, kind, micro in passes(len(stages), micro_batches, schedule):
        role, first, last = stages[stage], stage == 0, stage == len(stages) - 1
        if kind == "forward":
            if first:
                values[micro] = rows[micro] = job.text.next(micro=micro)
            if last:
                role.loss(values[micro], rows[micro], micro=micro)
            else:
                values[micro] = role.forward(values[micro], micro=micro)
        else:
            gradients[micro] = role.backward(gradients.get(micro), micro=micro)
    weight = job.back.update()
    job.front.update(weight)
    job.middle.update(weight)
