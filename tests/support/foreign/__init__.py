"""Token files in the documented layouts of other tools, written by plain code of our own."""
