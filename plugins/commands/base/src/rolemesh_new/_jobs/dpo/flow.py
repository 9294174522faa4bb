from rolemesh import flow


@flow
def dpo(job):
    answers = job.pairs.encode(job.data.next())
    job.trainer.train(job.pairs.join(job.reference.logprobs(answers)))
