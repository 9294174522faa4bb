"""The protocol between master, agents and ranks, sans I/O: machines that take an event and return effects.

Nothing here opens a socket, reads a clock or starts a process; Ray, zmq and the rest are drivers around these machines.
"""
