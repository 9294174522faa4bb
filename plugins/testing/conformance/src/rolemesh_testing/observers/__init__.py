"""The standard tests of observers, and what they are made with."""
