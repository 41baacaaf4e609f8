"""`tokenstore merge` in a clone: `python -m tools.merge_stores --help`."""

from tokenstore.commands.entry import run_command

if __name__ == "__main__":
    run_command("merge")
