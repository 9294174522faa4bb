"""The meaning of the texts of well-known errors: memory, broken hardware, CUDA, NCCL, a connection to a peer. Pure.

The texts are those of CUDA's runtime (its error strings), NVIDIA's Xid catalogue, NCCL's `ncclGetErrorString`, c10d,
gloo, vLLM, Ray and the C library. The first rule that matches counts, so the order is from certain to vague.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

__all__ = ["RULES", "Rule", "known", "raised_lines"]


class Rule(NamedTuple):
    """A text and its meaning, as the kind of a `Verdict` and its reason."""

    pattern: re.Pattern[str]
    kind: Literal["software", "hardware", "user", "unknown"]
    reason: str


def _rule(kind: Literal["software", "hardware", "user", "unknown"], reason: str, *texts: str) -> Rule:
    return Rule(re.compile("|".join(texts), re.IGNORECASE), kind, reason)


RULES: Final[tuple[Rule, ...]] = (
    # ------------------------------------------------------------------------------------------------------ hardware
    _rule("hardware", "memory of a GPU is broken (uncorrectable ECC error)", "uncorrectable ECC", "ECC_UNCORRECTABLE"),
    _rule("hardware", "a link between GPUs is broken (uncorrectable NVLink error)", "uncorrectable NVLink"),
    _rule("hardware", "a GPU has fallen off the bus", "fallen off the bus", "GPU is lost"),
    _rule(
        "hardware",
        "the driver reports a broken GPU (Xid)",
        r"\bXid\b.*?:\s*(?:48|6[234]|74|79|9[245]|119|120|14[03])\b",
    ),
    _rule(
        "hardware",
        "the node's GPUs cannot be used",
        "CUDA-capable device(?:s|\\(s\\) is/)?.{0,5}are busy or unavailable",
        "no CUDA-capable device is detected",
        "unable to determine the device handle for GPU",
        "Driver/library version mismatch",
        "system not yet initialized",
    ),
    _rule("hardware", "a disk or a network file system of the node fails", r"\[Errno 5\]", "Input/output error"),
    # ------------------------------------------------------------------------------------------------- out of memory
    _rule(
        "software",
        "out of memory: Ray's memory monitor killed it, perhaps in place of a hungrier process; "
        "give the node more memory or fewer ranks, or turn the monitor off (RAY_memory_monitor_refresh_ms=0)",
        "node running low on memory",
        "due to memory pressure",
        "exceeds the memory usage threshold",
        "RayOutOfMemoryError",
    ),
    _rule(
        "software",
        "out of memory on the GPU",
        r"(?:CUDA|HIP|XPU)(?: error:)? out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "less than desired GPU memory utilization",
        "No available memory for the cache blocks",
        r"torch(?:\.cuda)?\.OutOfMemoryError",
    ),
    _rule(
        "software",
        "out of memory",
        r"MemoryError\b",
        "DefaultCPUAllocator",
        r"Cannot allocate memory(?! in static TLS)",
        r"std::bad_alloc",
        "OutOfMemoryError",
    ),
    _rule("software", "a disk or /dev/shm is full", "No space left on device", "Disk quota exceeded"),
    # ------------------------------------------------------------------------------- CUDA: the context is lost with it
    _rule(
        "user",
        "an assertion in a CUDA kernel failed: most often an index out of range, such as a token id or a label",
        # PyTorch ends the text of every CUDA error with how "to enable device-side assertions".
        "device-side assert triggered",
    ),
    _rule(
        "software",
        "a CUDA kernel crashed, and the process's CUDA context with it",
        "illegal memory access",
        "unspecified launch failure",
        "misaligned address",
        "illegal instruction was encountered",
        "hardware stack error",
        "CUBLAS_STATUS_EXECUTION_FAILED",
        "CUDNN_STATUS_EXECUTION_FAILED",
    ),
    _rule("unknown", "the driver reports a fault of a GPU program (Xid)", r"\bXid\b"),
    _rule(
        "user",
        "an operation cannot repeat its results on a GPU; use another one, or set the role's options.deterministic to "
        "false",
        "does not have a deterministic implementation",
    ),
    # -------------------------------------------------------------------------------------------- peers and collectives
    _rule(
        "software",
        "a collective did not end in time: a member of the group did not take part in it",
        "Watchdog caught collective operation timeout",
        r"Timed out waiting \d+\s*ms for (?:recv|send) operation",
        "Application timeout caused pair closure",
    ),
    _rule(
        "software",
        "an echo: the connection to a peer broke, which most likely died",
        r"Connection (?:was )?(?:reset|closed|refused|aborted)",
        "Broken ?pipe",
        "remote process exited or there was a network error",
        "ncclRemoteError",
        "NCCL communicator was aborted",
        "failed to recv, got 0 bytes",
        "recvValue failed",
        "gloo/transport/tcp",
        "connectFullMesh failed",
        "Socket Timeout",
    ),
    _rule("software", "a worker process of vLLM's engine died", "Worker proc .+ died unexpectedly"),
    _rule("user", "NCCL was called wrongly", "ncclInvalidUsage", "ncclInvalidArgument"),
    _rule(
        "unknown",
        "a system call of NCCL failed: the network, shared memory or a device",
        "ncclSystemError",
        "NCCL error.*unhandled system error",
    ),
    _rule("unknown", "NCCL failed", "ncclUnhandledCudaError", "ncclInternalError", r"NCCL error"),
    _rule(
        "unknown", "CUDA failed", r"CUDA(?: driver| runtime)? error", r"\bcudaError\w+", "CUDA_ERROR_", "CUBLAS_STATUS_"
    ),
)


def known(lines: Iterable[str]) -> Rule | None:
    """Return the meaning of an error with these lines: the first rule that one of them matches."""
    text = "\n".join(lines)
    return next((rule for rule in RULES if rule.pattern.search(text)), None)


def raised_lines(traceback: str) -> list[str]:
    """Return the lines of a Python traceback that say what was raised. Lines that quote code are indented."""
    return [line for line in traceback.splitlines() if line and not line[0].isspace()]
