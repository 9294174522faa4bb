"""Every step tells the router the addresses of the pools' servers. Requests do not wait for steps."""

from rolemesh import flow


@flow
def serve(job):
    job.router.route(job.prefill.address(), job.decode.address())
