from rolemesh import flow


@flow
def grpo(job, lag=0):
    samples = job.rollout.generate(job.data.next())
    scored = job.reward.advantages(job.reward.score(samples))
    job.trainer.train(scored)
    job.rollout.load_weights(job.trainer.weights(), lag=lag)
    answers = job.rollout.evaluate(job.data.held_out(every=10), every=10)
    job.reward.evaluate(answers, every=10)
