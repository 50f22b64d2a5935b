"""``python -m cli`` is the ``layerstream`` command."""

from cli import main
from models.interpreter import allow_another


def start() -> None:
    """Run the command line in a process that it may give to another interpreter."""
    allow_another()
    main()


if __name__ == "__main__":
    start()
