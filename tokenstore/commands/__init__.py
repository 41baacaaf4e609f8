"""Layer 7: the command line. Each module defines one command: its arguments, what it calls, what it prints.

`entry` is the entry point. `app` runs a command and turns errors into messages (with --json: objects) and exit codes.
Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 more bad records than allowed, 4 damage found,
130 interrupted (the same build or append resumes).
"""
