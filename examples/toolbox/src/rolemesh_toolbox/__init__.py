"""Plugins for rolemesh: the workloads `agent` and `sandbox`, the strategy `even`, and the observer `tensorboard`."""
