"""The standard tests of examinations, and what they are made with."""
