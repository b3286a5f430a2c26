"""Traces of requests through serving engines, each in a process (and an environment) of its own."""
