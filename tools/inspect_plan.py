"""`tokenstore plan` in a clone: `python -m tools.inspect_plan --help`."""

from tokenstore.commands.app import run_command
from tokenstore.commands.plan import plan

if __name__ == "__main__":
    run_command(plan, "tools.inspect_plan")
