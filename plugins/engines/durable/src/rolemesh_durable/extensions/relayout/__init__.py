"""Other layouts of a running job: roles get other numbers of ranks, and ranks leave nodes that are drained."""
