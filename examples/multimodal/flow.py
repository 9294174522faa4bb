"""Two towers that train each other: features go forward over an edge, their gradients come back over another."""

from rolemesh import flow
from rolemesh_torch import passes


@flow
def multimodal(job, micro_batches: int = 2, schedule: str = "1f1b", evaluate_every: int = 50):
    """Vision processes the next micro-batch while text processes the previous one. Both update once per step."""
    towers, features, gradients = (job.vision, job.text), {}, {}
    for tower, kind, micro in passes(len(towers), micro_batches, schedule):
        if (tower, kind) == (0, "forward"):
            features[micro] = job.vision.forward(job.data.images(micro=micro), micro=micro)
        elif kind == "forward":
            job.text.loss(features[micro], job.data.questions(micro=micro), micro=micro)
        else:
            gradients[micro] = towers[tower].backward(gradients.get(micro), micro=micro)
    # The loss is a mean over the answers of all micro-batches and ranks; text says how many there were.
    job.vision.update(job.text.update())

    when = {"every": evaluate_every, "at": evaluate_every - 1}
    asked = job.data.held_out_questions(**when)
    seen = job.vision.predict(job.data.held_out_images(**when), **when)
    job.data.judge(job.text.predict(seen, asked, **when), asked, **when)
