"""The messages of the protocol: inference.proto, and what is generated of it (`make grpc-messages`)."""
