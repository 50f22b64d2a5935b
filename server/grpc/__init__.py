"""gRPC: the protocol as over HTTP, on a port of its own; not imported unless it is asked for."""
