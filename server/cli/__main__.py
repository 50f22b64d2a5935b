"""``python -m server.cli`` is the ``layerstream`` command."""

from server.cli import main

main()
