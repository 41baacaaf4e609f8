"""`tokenstore index` in a clone: `python -m tools.index_store --help`."""

from tokenstore.commands.entry import run_command

if __name__ == "__main__":
    run_command("index")
