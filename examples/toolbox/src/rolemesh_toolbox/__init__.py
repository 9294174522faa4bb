"""Plugins: workloads `guesser` and `arithmetic`, strategy `even`, level `give-up`, observer `event-file`."""
