"""Values in transit: headers and buffers, slots in shared memory, frames, and the transports of the engine."""
