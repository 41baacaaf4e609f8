"""Ways to run the units of a build. processes: worker processes on this machine."""
