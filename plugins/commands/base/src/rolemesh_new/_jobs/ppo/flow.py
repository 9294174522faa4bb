from rolemesh import flow


@flow
def ppo(job):
    scored = job.reward.score(job.rollout.generate(job.data.next()))
    rows = job.advantages.gae(job.critic.values(job.reference.logprobs(scored)))
    job.actor.train(rows)
    job.critic.train(rows)
    job.rollout.load_weights(job.actor.weights())
    answers = job.rollout.evaluate(job.data.held_out(every=10), every=10)
    job.reward.evaluate(answers, every=10)
