"""``layerstream service``: the service of systemd, and the limits that follow from its budget."""

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.arguments import size
from cli.printing.help import CommandGroup
from cli.printing.output import say
from models.sizes import format_size
from models.toml_files import read_toml
from server.errors import ServiceError
from server.memory.process_memory import process_bytes

app = CommandGroup(help="The service of systemd, with limits by its budget.")

_MIB = 1 << 20
# Of MemoryMax, beside the budget and the process with at least so many models (deploy/layerstream.service).
_MARGIN, _MODELS_EXPECTED = 64 * _MIB, 6
# Files of connections and of what else is open; and of each model, which takes a MiB at the very least, its
# weights twice while another version comes.
_FILES, _FILES_OF_MODEL = 16384, 2
_TASKS, _TASKS_OF_CORE = 256, 8

_MODELS = "var/lib/layerstream/models"
#: What the unit starts; an ExecStart of a drop-in comes instead of it.
_EXECUTES = "/usr/bin/env layerstream serve"
_UNITS = "usr/lib/systemd/system"
_SETTINGS = "etc/layerstream/layerstream.toml"
_DROP_IN = "etc/systemd/system/layerstream.service.d/budget.conf"
#: The places of the files of deploy/ on a machine without the package.
_PLACES = {
    "layerstream.service": "etc/systemd/system/layerstream.service",
    "layerstream.socket": "etc/systemd/system/layerstream.socket",
    "layerstream.sysusers": "etc/sysusers.d/layerstream.conf",
    "layerstream.tmpfiles": "etc/tmpfiles.d/layerstream.conf",
    "layerstream.toml": _SETTINGS,
}


@app.callback()
def _service() -> None:
    """The service of systemd, with limits that follow from its budget."""


@app.command()
def install(
    budget: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory for all models and their requests.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"The file of settings that it serves by. Default: /{_SETTINGS}.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be written, and write nothing.")
    ] = False,
    root: Annotated[
        Path, typer.Option(metavar="FOLDER", help="A system that lies in this folder.")
    ] = Path("/"),
) -> None:
    """Write a drop-in with the budget and the limits that follow from it, and units where there are none.

    Example: layerstream service install --budget 256MiB

    Units, user, folders and settings come with the Debian package; on a machine without it they are
    written, too. A file that is there already is left as it is, but for the drop-in.
    """
    n_bytes = size(budget, "--budget")
    assert n_bytes is not None
    if config is not None and not config.is_absolute():
        raise typer.BadParameter("the service needs all of its path", param_hint="--config")
    files = {root / _DROP_IN: drop_in(n_bytes, root, config), **dict(_missing(root))}
    changed = [path for path, text in files.items() if _read(path) != text]
    if dry_run:
        for path in changed:
            typer.echo(f"# {path}\n{files[path]}")
    for path in changed if not dry_run else ():
        _write(path, files[path])
        say(f"{path}: written")
    if not changed:
        say(f"{root / _DROP_IN}: is there already, with these limits")
    elif not dry_run and root == Path("/"):
        _tell_system()


def drop_in(budget: int, root: Path, config: Path | None = None) -> str:
    """Return the drop-in for ``budget`` bytes on the machine whose files lie in ``root``.

    ``config``: the file of settings that the service shall take, as it is called there; None: the unit's.

    Raises:
        ServiceError: the machine has less memory than the service would be allowed, or its file of
            settings cannot be read.
    """
    settings = _settings(root, config)
    repository = str(settings.get("repository", f"/{_MODELS}"))
    packs = list((root / repository.lstrip("/")).glob("*/*/weights.bin"))
    models = len({path.parent.parent for path in packs})
    taken = process_bytes(max(models, _MODELS_EXPECTED), grpc="grpc_port" in settings)
    base = -(-taken // _MIB) * _MIB
    most = budget + base + _MARGIN
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if most > memory:
        raise ServiceError(
            f"--budget {format_size(budget)}: with the process {format_size(most)}, and this machine has "
            f"{format_size(memory)}; at most --budget {max(0, (memory - base - _MARGIN) // _MIB)}MiB"
        )
    mib = -(-budget // _MIB)
    weights = sum(path.stat().st_size for path in packs)
    # Without models it is not known, and with a budget alone there is too little memory.
    streams = not weights or weights > budget
    known = (
        f"{format_size(weights)} of weights in {repository}"
        if weights
        else "no models are there yet"
    )
    share, cores = (500, 200) if streams else (100, 100), os.cpu_count() or 1
    reads = "requests wait for reads" if streams else "the budget holds them all"
    told = "" if config is None else f" --config {shlex.quote(str(config))}"
    starts = "" if config is None else f"ExecStart=\nExecStart={_EXECUTES}{told}\n"
    return f"""\
# Written by `layerstream service install --budget {_written(budget)}{told}`; for another budget: once more.
[Service]
{starts}\
Environment=LAYERSTREAM_BUDGET={_written(budget)}
# {mib}M budget + {base // _MIB}M process base + {_MARGIN // _MIB}M margin.
MemoryMax={mib + (base + _MARGIN) // _MIB}M
# From here on the kernel drops pages of files.
MemoryHigh={mib + (base + _MARGIN // 2) // _MIB}M
# {known}: {reads}.
IOWeight={share[0]}
CPUWeight={share[1]}
# For {cores} cores, and as many models as the budget may hold.
TasksMax={_TASKS + _TASKS_OF_CORE * cores + mib}
LimitNOFILE={_FILES + _FILES_OF_MODEL * mib}
"""


def _settings(root: Path, config: Path | None) -> Mapping[str, Any]:
    """Return what the service's file of settings says; nothing where it is still to be written."""
    file = root / (_SETTINGS if config is None else str(config).lstrip("/"))
    try:
        return read_toml(file).values if config is not None or file.exists() else {}
    except ValueError as exc:
        raise ServiceError(str(exc)) from exc


def _written(n_bytes: int) -> str:
    """Return ``n_bytes`` as a setting has it."""
    return f"{n_bytes // _MIB}MiB" if n_bytes % _MIB == 0 else str(n_bytes)


def _missing(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield what the package would have brought, where it has not, and what each file holds."""
    if (root / _UNITS / "layerstream.service").exists():
        return
    here = Path(__file__).parent / "units"
    folder = here if here.is_dir() else Path(__file__).parents[1] / "deploy"
    for name, place in _PLACES.items():
        text = _read(folder / name)
        if text is None:
            raise ServiceError(f"{folder / name}: not there; install Layerstream again")
        if not (root / place).exists():
            yield root / place, text


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise ServiceError(f"{path}: {exc.strerror or exc}") from exc


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
    except OSError as exc:
        hint = "; run it as root" if os.geteuid() else ""
        raise ServiceError(f"{path}: {exc.strerror or exc}{hint}") from exc


def _tell_system() -> None:
    """Let systemd, if it runs, make user and folders, and read its units again."""
    if not Path("/run/systemd/system").is_dir():
        return
    for command in (
        ("systemd-sysusers", "layerstream.conf"),
        ("systemd-tmpfiles", "--create", "layerstream.conf"),
        ("systemctl", "daemon-reload"),
    ):
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
            raise ServiceError(f"{' '.join(command)}: {said[-1]}")
    say(
        "takes effect with: systemctl enable --now layerstream.socket; systemctl restart layerstream"
    )
