"""nginx before a server, with a configuration of its own in a folder of its own."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.servers.served import free_port

_READY_SECONDS = 10.0

# What its documentation names for an upstream with kept connections, nothing tuned beside.
_CONFIGURATION = """
{user}daemon off;
worker_processes 2;
worker_rlimit_nofile {files};
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections {files}; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_max_body_size 0;
    upstream service {{
        server 127.0.0.1:{server};
        keepalive 256;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=2048;
        location / {{
            proxy_pass http://service;
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            proxy_set_header Connection "";
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        }}
    }}
}}
"""


class NoNginxError(RuntimeError):
    """nginx is not installed, or does not start; the message says which."""


def check_nginx() -> str:
    """Return the program.

    Raises:
        NoNginxError: it is not installed.
    """
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise NoNginxError("nginx is not installed (Debian: apt-get install nginx-light)")
    return found


@contextlib.contextmanager
def before(server: int, folder: Path, files: int = 4096) -> Iterator[int]:
    """Start nginx before port ``server`` of this machine; yield its own port.

    Raises:
        NoNginxError: it is not installed, or does not listen within ten seconds.
    """
    program = check_nginx()
    folder = folder.resolve()
    folder.mkdir(exist_ok=True)
    port = free_port()
    user = "user root;\n" if os.geteuid() == 0 else ""
    configuration = folder / "nginx.conf"
    text = _CONFIGURATION.format(user=user, folder=folder, server=server, port=port, files=files)
    configuration.write_text(text)
    command = [program, "-e", str(folder / "error.log"), "-c", str(configuration)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        _wait(process, port)
        yield port
    finally:
        process.terminate()
        process.communicate()


def _wait(process: subprocess.Popen[str], port: int) -> None:
    end = time.monotonic() + _READY_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    process.terminate()
    raise NoNginxError(f"nginx does not start: {process.communicate()[1][-500:]}")
