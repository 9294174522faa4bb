"""Signals for ranks whose own code handles them: all ranks get one at once when the job stops."""
