"""The C++ runtime that loads and runs compiled models, and its Python binding `dhlo._runtime`."""
