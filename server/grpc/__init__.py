"""gRPC: the protocol as over HTTP, on a port of its own; not imported unless it is asked for."""

import os

# Before its library is: that writes lines of its own among those of the log, with what clients have sent.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
