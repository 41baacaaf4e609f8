"""`tokenstore report` in a clone: `python -m tools.report --help`."""

from tokenstore.commands.app import run_command
from tokenstore.commands.report import report

if __name__ == "__main__":
    run_command(report, "tools.report")
