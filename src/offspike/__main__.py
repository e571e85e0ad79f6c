"""``python -m offspike`` is the command line."""

from offspike.cli import main

main()
