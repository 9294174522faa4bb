from rolemesh import flow


@flow
def sft(job):
    job.trainer.train(job.tokens.encode(job.data.next()))
