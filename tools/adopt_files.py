"""`tokenstore adopt` in a clone: `python -m tools.adopt_files --help`."""

from tokenstore.commands.entry import run_command

if __name__ == "__main__":
    run_command("adopt")
