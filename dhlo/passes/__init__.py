"""Passes over dhlo modules, one file each; dhlo/pipeline.py says in which order they run."""
