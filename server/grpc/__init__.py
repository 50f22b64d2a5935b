"""gRPC: the protocol as over HTTP, on a port of its own. Nothing of it is imported unless it is asked for."""
