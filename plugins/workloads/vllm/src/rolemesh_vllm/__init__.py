"""Rollouts with vLLM as a rolemesh role. Importing this imports neither vllm nor torch."""

from rolemesh_vllm.options import VLLMOptions
from rolemesh_vllm.workload import VLLMWorkload

__all__ = ["VLLMOptions", "VLLMWorkload"]
