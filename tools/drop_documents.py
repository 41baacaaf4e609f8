"""`tokenstore drop` in a clone: `python -m tools.drop_documents --help`."""

from tokenstore.commands.entry import run_command

if __name__ == "__main__":
    run_command("drop")
