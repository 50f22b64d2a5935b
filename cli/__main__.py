"""``python -m cli`` is the ``layerstream`` command."""

from cli import main

main()
