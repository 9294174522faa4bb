"""The standard tests of scalers, and what they are made with."""
