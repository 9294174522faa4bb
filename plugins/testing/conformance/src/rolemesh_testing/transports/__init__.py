"""The standard tests of transports, and what they are made with."""
