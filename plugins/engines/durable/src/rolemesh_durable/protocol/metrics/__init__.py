"""Lines of metrics: the steps at which they end, and the sums over ranks. Pure."""
