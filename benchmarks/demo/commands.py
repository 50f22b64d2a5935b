"""Our own command line, as users call it."""

import json
import subprocess
import sys
from typing import Any


def layerstream(*arguments: str) -> Any:
    """Run a command of ours; return the JSON that it prints.

    Raises:
        CalledProcessError: it failed, and has said why on stderr.
    """
    command = [sys.executable, "-m", "cli", *arguments, "--json"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
