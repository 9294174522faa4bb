"""The standard tests of workloads, and their helpers."""
