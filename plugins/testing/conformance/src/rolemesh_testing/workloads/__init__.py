"""The standard tests of workloads, and what they are made with."""
