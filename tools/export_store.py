"""`tokenstore export` in a clone: `python -m tools.export_store --help`."""

from tokenstore.commands.entry import run_command

if __name__ == "__main__":
    run_command("export")
