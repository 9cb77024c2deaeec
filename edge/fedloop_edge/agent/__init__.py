"""The device side. Light on purpose: no torch, no flwr, no hub; ``runtimes`` needs neither gRPC nor TUF.

The public face is ``fedloop_edge.agent.agent.EdgeAgent``.
"""
