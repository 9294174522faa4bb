"""Three plugins for rolemesh: the workload `replay-buffer`, the strategy `spread`, the failover level `quarantine`."""
