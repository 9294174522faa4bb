"""Plugins for rolemesh: workloads `agent` and `sandbox`, strategy `even`, level `give-up`, observer `tensorboard`."""
