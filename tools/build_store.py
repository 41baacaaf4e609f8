"""`tokenstore build` in a clone: `python -m tools.build_store --help`."""

from tokenstore.commands.app import run_command
from tokenstore.commands.build import build

if __name__ == "__main__":
    run_command(build, "tools.build_store")
