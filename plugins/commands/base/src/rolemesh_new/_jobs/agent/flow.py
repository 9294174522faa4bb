from rolemesh import flow


@flow
def agent(job, lag=0):
    conversations = job.agent.converse(job.tasks.next(), calls=[job.rollout, job.environment])
    job.trainer.train(conversations)
    job.rollout.load_weights(job.trainer.weights(), lag=lag)
