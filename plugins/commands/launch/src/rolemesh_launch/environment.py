"""The environment of a worker: torchrun's variables, name by name. Pure."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Worker", "variables"]


class Worker(NamedTuple):
    """One process of the script. `local_world_size` is the same on every node."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    restarts: int
    max_restarts: int
    address: str
    port: int
    run_id: str
    role: str
    error_file: str


def variables(worker: Worker) -> dict[str, str]:
    """Return the variables as ``torch.distributed.elastic.agent.server.local_elastic_agent`` of torch 2.13 sets
    them."""
    return {
        "LOCAL_RANK": str(worker.local_rank),
        "RANK": str(worker.rank),
        "GROUP_RANK": str(worker.rank // worker.local_world_size),
        "ROLE_RANK": str(worker.rank),
        "ROLE_NAME": worker.role,
        "LOCAL_WORLD_SIZE": str(worker.local_world_size),
        "WORLD_SIZE": str(worker.world_size),
        "GROUP_WORLD_SIZE": str(worker.world_size // worker.local_world_size),
        "ROLE_WORLD_SIZE": str(worker.world_size),
        "MASTER_ADDR": worker.address,
        "MASTER_PORT": str(worker.port),
        "TORCHELASTIC_RESTART_COUNT": str(worker.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(worker.max_restarts),
        "TORCHELASTIC_RUN_ID": worker.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": worker.error_file,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
