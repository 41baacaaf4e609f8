"""Input files -> rows.

inputs, units          which files, in which order; how they are cut into units of work
records, columnar      a file -> rows, good and bad
decompress             compressed files as streams of bytes
magic, checksums       recognise a file by its first bytes; detect that a file changed
"""
