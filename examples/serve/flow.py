"""Every step tells the router where the pools' servers are now; requests do not wait for steps."""

from rolemesh import flow


@flow
def serve(job):
    job.router.route(job.prefill.address(), job.decode.address())
