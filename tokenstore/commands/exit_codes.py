"""Exit codes of all commands. A module without imports: `entry` needs one before anything is imported."""

FAILED, USAGE, BAD_RECORDS, DAMAGE, INTERRUPTED = 1, 2, 3, 4, 130
EXIT_CODES = (
    "Exit codes: 0 success; 1 failure; 2 wrong usage or configuration; 3 more bad records than allowed (build, append);"
    " 4 damage found (verify); 130 interrupted (run the same build or append again to resume)."
)
