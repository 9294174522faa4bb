"""Episodes of an environment that run in a rank of the workload `environment`."""
