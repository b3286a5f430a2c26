"""What the commands of `dhlo` do; dhlo/cli.py describes their arguments."""
