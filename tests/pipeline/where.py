"""A module that a test starts as a process: which files modules come from, what it was given, its limit."""

import importlib.util
import json
import os
import resource
import sys

for _line in sys.stdin:
    if _line.strip() == "die":
        sys.stderr.write("first\n\n  second \x1b[31m\nthird\nfourth\n")
        sys.stderr.flush()
        os.kill(os.getpid(), 9)
    _specs = {name: importlib.util.find_spec(name) for name in _line.split()}
    print(
        json.dumps(
            {
                "origins": {name: spec and spec.origin for name, spec in _specs.items()},
                "environment": dict(os.environ),
                "arguments": sys.argv[1:],
                "file_bytes": resource.getrlimit(resource.RLIMIT_FSIZE)[0],
                "path": sys.path,
            }
        ),
        flush=True,
    )
