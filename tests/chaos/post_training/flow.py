"""Answers come from weights that are one step old, as in asynchronous reinforcement learning."""

from rolemesh import flow


@flow
def post_training(job):
    job.trainer.train(job.reward.score(job.rollout.generate(job.data.next())))
    job.rollout.load(job.trainer.weights(), lag=1)
