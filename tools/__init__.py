"""Commands in a clone: `python -m tools.build_store`, `tools.verify_store`, `tools.demo`. Not part of the wheel."""
