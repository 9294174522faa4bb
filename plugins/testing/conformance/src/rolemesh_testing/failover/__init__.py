"""The standard tests of failover levels, and what they are made with."""
