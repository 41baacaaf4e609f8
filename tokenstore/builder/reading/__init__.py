"""Input files -> rows.

inputs, units          which files, in which order; how they are cut into units of work
records, columnar      a file -> rows, good and bad
json_array, tar        files that hold one JSON array; archives of texts
remote_inputs          inputs at URLs
decompress             compressed files as streams of bytes
magic, checksums       recognise a file by its first bytes; detect that a file changed
"""
