"""The standard tests of the declaration of a kind, and what they are made with."""
