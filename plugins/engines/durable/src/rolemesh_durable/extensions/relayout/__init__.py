"""Other layouts of a job that runs: roles get other numbers of ranks, and ranks leave nodes that are drained."""
