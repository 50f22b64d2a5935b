"""Settings that hold only in a process that is there for the service alone: `layerstream serve`."""

from server.settings.settings import Settings, SettingsError

#: Of the whole process.
OF_PROCESS = ("memory", "log_format")
#: Of sockets for HTTP, which another program opens.
OF_SOCKETS = ("port", "unix_socket", "unix_socket_mode", "proxy_protocol")
#: Of connections; they hold for gRPC alone.
OF_CONNECTIONS = (
    "tls_certificate",
    "tls_key",
    "header_timeout",
    "idle_timeout",
    "max_connections",
    "max_connections_per_address",
)


def check_embedded(settings: Settings, *, listens: bool) -> None:
    """Check that ``settings`` can hold in a process of another program; ``listens``: for gRPC, too.

    Raises:
        SettingsError: some cannot, or gRPC has a port and nothing listens on it.
    """
    if settings.grpc_port is not None and not listens:
        raise SettingsError(
            "grpc_port: give Service(listeners=[server.grpc.server.grpc_server]), which listens there"
        )
    refused = (*OF_PROCESS, *OF_SOCKETS, *(() if listens else OF_CONNECTIONS))
    named = [name for name in refused if name in settings.model_fields_set]
    if named:
        instead = "; give budget instead of memory" if "memory" in named else ""
        raise SettingsError(
            f"{', '.join(named)}: only `layerstream serve` can do that; here the process and its sockets "
            f"are the application's, which mounts the service{instead}"
        )
