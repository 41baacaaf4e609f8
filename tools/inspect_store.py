"""`tokenstore inspect` in a clone: `python -m tools.inspect_store --help`."""

from tokenstore.commands.app import run_command
from tokenstore.commands.inspect import inspect

if __name__ == "__main__":
    run_command(inspect, "tools.inspect_store")
