"""Benchmarks, one module per claim, with the limit of the machine and other libraries in the same run: `python -m benches.run`."""
