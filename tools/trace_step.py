"""`tokenstore trace` in a clone: `python -m tools.trace_step --help`."""

from tokenstore.commands.entry import run_command

if __name__ == "__main__":
    run_command("trace")
