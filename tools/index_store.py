"""`tokenstore index` in a clone: `python -m tools.index_store --help`."""

from tokenstore.commands.app import run_command
from tokenstore.commands.index import index

if __name__ == "__main__":
    run_command(index, "tools.index_store")
