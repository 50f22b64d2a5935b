"""The models of the service: found, opened, served by a thread each."""
