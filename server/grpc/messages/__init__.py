"""The messages of the protocols: .proto files, and what is generated of them (`make grpc-messages`)."""
