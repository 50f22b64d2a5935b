"""Our own command line, as users call it."""

import json
import subprocess
import sys
from typing import Any

from models.processes import child_environment, python_command


def layerstream(*arguments: str) -> Any:
    """Run a command of ours; return the JSON that it prints.

    Raises:
        SystemExit: it failed, and has said why on stderr.
    """
    print(f"== layerstream {' '.join(arguments)}", file=sys.stderr, flush=True)
    command = python_command("cli", *arguments, "--json")
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, env=child_environment())
    if done.returncode:
        raise SystemExit(f"layerstream {' '.join(arguments)}: exit {done.returncode}")
    return json.loads(done.stdout)
