"""`tokenstore verify` in a clone: `python -m tools.verify_store --help`."""

from tokenstore.commands.app import run_command
from tokenstore.commands.verify import verify

if __name__ == "__main__":
    run_command(verify, "tools.verify_store")
