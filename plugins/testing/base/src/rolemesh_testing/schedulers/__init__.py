"""The standard tests of placement strategies, and what they are made with."""
