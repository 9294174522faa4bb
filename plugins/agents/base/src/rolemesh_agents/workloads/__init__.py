"""The workloads of agents."""
