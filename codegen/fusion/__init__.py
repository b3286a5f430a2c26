"""The parts of the fusion pass (codegen/fuse.py)."""
