"""``python -m chatd`` is the ``chatd`` command."""

from chatd.cli.main import main

main()
