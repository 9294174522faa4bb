"""PPO: ask, answer, verify, compare with the reference, ask the critic, train both, send the actor's weights back."""

from rolemesh import flow


@flow
def ppo(job):
    """The roles are those of Ouyang et al., arXiv:2203.02155, with a verifier in place of a reward model."""
    evaluate(job, at=0)
    scored = job.reward.score(job.rollout.generate(job.data.next()))
    batch = job.advantages.gae(job.critic.values(job.reference.logprobs(scored)))
    job.actor.train(batch)
    job.critic.train(batch)
    job.rollout.load_weights(job.actor.weights())
    evaluate(job, at=job.steps - 1)


def evaluate(job, at: int):
    """One greedy answer to each held-out question, in step `at` only."""
    answers = job.rollout.evaluate(job.data.held_out(every=job.steps, at=at), every=job.steps, at=at)
    job.reward.evaluate(answers, every=job.steps, at=at)
