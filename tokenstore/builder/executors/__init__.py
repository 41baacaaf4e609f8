"""How units of work are run. processes: worker processes on this machine."""
