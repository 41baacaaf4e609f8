"""`tokenstore trace` in a clone: `python -m tools.trace_step --help`."""

from tokenstore.commands.app import run_command
from tokenstore.commands.trace import trace

if __name__ == "__main__":
    run_command(trace, "tools.trace_step")
