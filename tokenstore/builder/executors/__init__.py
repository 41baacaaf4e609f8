"""Ways to run the units of a build. processes: worker processes on this machine. ray_actors: on a Ray cluster."""
