"""Conversations between a model and an environment, as the workload `agent` holds them."""
