"""Input files -> rows.

inputs, units          which files, in which order, cut into units of work
records, columnar      a file -> rows, good and bad; decompress: compressed files as streams
magic, checksums       what a file is by its first bytes; whether it changed
"""
