"""nginx before a server, as the recipes of deploy/proxies have it, in a folder of its own."""

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

_RECIPES = Path(__file__).parents[2] / "deploy" / "proxies"
_STREAM_MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")

# What is around a recipe, everything that it writes in a folder of its own.
_MAIN = """
daemon off;
worker_processes 2;
worker_rlimit_nofile {files};
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections {files}; }}
"""
_HTTP = """
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {text}
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


def placed(recipe: str, port: int, server: int, host: str = "127.0.0.1") -> str:
    """Return a file of deploy/proxies that listens on ``host``:``port``, before port ``server``."""
    text = (_RECIPES / recipe).read_text()
    for found, wanted in {
        "127.0.0.1:8080": f"127.0.0.1:{server}",
        "port_value: 8080": f"port_value: {server}",
        "0.0.0.0, port_value: 80 ": f"{host}, port_value: {port} ",
        "listen 80 ": f"listen {host}:{port} ",
        '":80"': f'"{host}:{port}"',
    }.items():
        text = text.replace(found, wanted)
    return text


def nginx(text: str, folder: Path, files: int = 4096) -> list[str]:
    """Write the recipe ``text`` and what is around it to ``folder``; return the command.

    Raises:
        NoNginxError: it is not installed, or its module for streams of bytes is not.
    """
    program = check_nginx()
    main = "user root;\n" if os.geteuid() == 0 else ""
    main += _MAIN.format(folder=folder, files=files)
    if "\nstream {" not in text:
        main += _HTTP.format(folder=folder, text=text)
    elif _STREAM_MODULE.exists():
        main = f"load_module {_STREAM_MODULE};\n{main}{text}"
    else:
        raise NoNginxError(f"{_STREAM_MODULE} is not there (Debian: libnginx-mod-stream)")
    configuration = folder / "main.conf"
    configuration.write_text(main)
    return [program, "-e", str(folder / "error.log"), "-c", str(configuration)]


@contextlib.contextmanager
def before(server: int, folder: Path, recipe: str = "nginx.conf") -> Iterator[int]:
    """Start nginx by a ``recipe`` before port ``server`` of this machine; yield its own port.

    Raises:
        NoNginxError: it is not installed, or does not listen within ten seconds.
    """
    folder = folder.resolve()
    folder.mkdir(exist_ok=True)
    port = free_port()
    process = subprocess.Popen(
        nginx(placed(recipe, port, server), folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
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
