"""The flows of the benchmarks' jobs."""

from rolemesh import AtMost, flow


@flow
def chain(job):
    """One value a step through three roles."""
    job.sink.take(job.relay.hand(job.source.make()))


@flow
def ticks(job):
    """Every rank does its own thing; no edges, so only the controller joins the ranks."""
    job.work.tick()


@flow
def weights(job):
    """Weights to the rollout, and word back, so that one transfer at a time is under way."""
    job.trainer.seen(job.rollout.load(job.trainer.weights()))


@flow
def own_tensors(job):
    """The same weights in buckets, which the rollout copies as they come."""
    job.trainer.seen(job.rollout.copy(job.trainer.buckets()))


@flow
def failover(job):
    """One value a step for everybody."""
    rows = job.data.next()
    job.trainer.train(rows)
    job.single.take(rows)
    job.heavy.take(rows)


@flow
def calls(job):
    """Every rank of one role calls another role, which has nothing else to do."""
    job.caller.call(calls=[job.callee])


@flow
def balanced(job, operator="shared", lag=0):
    """Rows that take some time each, shared out by demand or in fixed parts; with a `lag`, what is finished first."""
    rows = getattr(job.work, operator)(job.source.next())
    job.sink.take(rows, lag=AtMost(lag)) if lag else job.sink.take(rows)


@flow
def short_grpo(job, lag=0, every=2):
    """GRPO with weights that are at most `lag` updates old, and an evaluation every `every` steps beside it."""
    job.trainer.train(job.verifier.score(job.rollout.generate(job.questions.next())))
    job.rollout.load_weights(job.trainer.weights(), lag=AtMost(lag))
    job.examiner.load_weights(job.trainer.weights(every=every, at=0), every=every, at=0)
    answers = job.examiner.evaluate(job.questions.held_out(every=every, at=0), every=every, at=0)
    job.judge.evaluate(answers, every=every, at=0)


@flow
def long_tails(job, lag=0):
    """Conversations for a trainer; with a `lag`, it takes those that are finished first."""
    rows = job.agent.converse(job.tasks.next(), calls=[job.rollout, job.environment])
    job.trainer.train(rows, lag=AtMost(lag)) if lag else job.trainer.train(rows)
    job.rollout.load(job.trainer.weights())
