"""Functions of the user's."""
