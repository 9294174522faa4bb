from rolemesh import flow


@flow
def pretrain(job):
    job.trainer.train(job.text.next())
