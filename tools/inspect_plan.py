"""`tokenstore plan` in a clone: `python -m tools.inspect_plan --help`."""

from tokenstore.commands.entry import run_command

if __name__ == "__main__":
    run_command("plan")
