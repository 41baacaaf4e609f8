"""Commands in a clone: `python -m tools.build_store`, `tools.verify_store`. Not part of the wheel."""
