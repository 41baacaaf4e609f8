"""Benchmarks: one claim a file, the machine's limit and peers in the same run. `python -m benches.run` prints the table."""
