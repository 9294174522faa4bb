"""The standard tests of commands, and what they are made with."""
