"""The standard tests of checks, and what they are made with."""
