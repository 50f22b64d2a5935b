"""Stands for the process that compiles: does what the "model" that it gets says.

``copy PACK`` makes that pack; ``fail KIND`` fails so; ``fail open`` says which shapes it got, or wants one;
``die NUMBER`` ends by a signal; ``sleep`` goes on until it is killed.
"""

import json
import os
import shutil
import signal
import sys


def main() -> None:
    task = json.loads(sys.argv[1])
    with open(task["source"], encoding="utf-8") as file:  # noqa: PTH123
        word, _, rest = file.read().strip().partition(" ")
    say(step="read", detail=task["source"])
    if word == "copy":
        shutil.copytree(rest, os.path.join(task["destination"], "1"))  # noqa: PTH118
        say(warning=f"{task['source']}: a warning")
        say(pack=task["destination"])
    elif rest == "open":
        shapes = task["shapes"] or "fix it with --shape data=1,N"
        say(error=f"{task['source']}: {shapes}", kind="model")
    elif word == "fail":
        say(error=f"{task['source']}: why not", kind=rest)
    elif word == "die":
        os.kill(os.getpid(), int(rest))
    else:
        os.makedirs(task["destination"])  # noqa: PTH103
        say(step="sleep", detail=str(os.getpid()))
        signal.pause()


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
