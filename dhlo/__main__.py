"""`python -m dhlo`: the same as the command `dhlo`."""

from dhlo.cli import app

if __name__ == "__main__":
    app()
