"""The standard tests of failover levels, and their helpers."""
