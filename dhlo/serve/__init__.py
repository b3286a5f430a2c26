"""Serving language models: an engine over steps whose caches are pools of blocks, and its front doors."""
