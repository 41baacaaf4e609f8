"""`tokenstore append` in a clone: `python -m tools.append_store --help`."""

from tokenstore.commands.app import run_command
from tokenstore.commands.append import append

if __name__ == "__main__":
    run_command(append, "tools.append_store")
