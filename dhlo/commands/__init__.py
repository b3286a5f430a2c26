"""What the commands of `dhlo` do; dhlo/command_line/ describes their arguments."""
