"""Rollouts with vLLM as rolemesh roles. Importing this imports neither vllm nor torch."""

from rolemesh_vllm.options import PrefillOptions, VLLMOptions
from rolemesh_vllm.pd import VLLMDecode, VLLMPrefill
from rolemesh_vllm.workload import VLLMWorkload

__all__ = ["PrefillOptions", "VLLMDecode", "VLLMOptions", "VLLMPrefill", "VLLMWorkload"]
