"""`tokenstore report` in a clone: `python -m tools.report --help`."""

from tokenstore.commands.entry import run_command

if __name__ == "__main__":
    run_command("report")
