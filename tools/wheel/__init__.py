"""Checks of the wheel and the source archive, for `.ci/wheel`.

archives.py   both archives hold what they should, and nothing else
installed.py  First steps, run against an installed wheel
uses.py       one use of each extra; imports nothing of the clone, and runs where only that extra is installed
size.py       packages and megabytes of an environment
"""
