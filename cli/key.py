"""``layerstream key``: the file of keys that a server asks for (``serve --keys FILE``)."""

from pathlib import Path
from typing import Annotated

import typer

from cli.arguments import Json
from cli.printing.help import CommandGroup
from cli.printing.output import print_json, print_table, say
from server.access import ROLES, add_key, list_keys, remove_key

app = CommandGroup(help="Keys that a server asks for: a file of their hashes.")

_File = Annotated[Path, typer.Argument(help="The file that `serve --keys` names.")]
_Name = Annotated[str, typer.Argument(help="What the key is called, in logs too.")]


@app.command()
def add(
    file: _File,
    name: _Name,
    role: Annotated[
        str, typer.Option(metavar="|".join(ROLES), help="admin may load and unload models, too.")
    ] = "infer",
    as_json: Json = False,
) -> None:
    """Make a key and print it, this once: the file has its hash only.

    Example: layerstream key add keys camera
    """
    if role not in ROLES:
        raise typer.BadParameter(f"{role[:60]!r} is not {' or '.join(ROLES)}", param_hint="--role")
    key = add_key(file, name, role)
    if as_json:
        print_json({"name": name, "role": role, "key": key})
    else:
        typer.echo(key)
        typer.echo("a running server knows it after SIGHUP", err=True)


@app.command("list")
def list_(file: _File, as_json: Json = False) -> None:
    """List names and roles.

    Example: layerstream key list keys
    """
    rows = [(key.name, key.role) for key in list_keys(file)]
    if as_json:
        print_json([{"name": name, "role": role} for name, role in rows])
    else:
        print_table("Keys", ("name", "role"), rows)


@app.command()
def remove(file: _File, name: _Name, as_json: Json = False) -> None:
    """Take a key out of the file; a running server takes it until SIGHUP.

    Example: layerstream key remove keys camera
    """
    remove_key(file, name)
    if as_json:
        print_json({"name": name, "removed": True})
    else:
        say(f"{name}: removed; a running server takes it until SIGHUP")
