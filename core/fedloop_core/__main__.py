"""``python -m fedloop_core`` is ``fedloop``."""

from fedloop_core.cli import main

main()
