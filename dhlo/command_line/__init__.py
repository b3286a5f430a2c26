"""The commands of `dhlo` and their arguments; dhlo/commands/ does what they say, and has the options that several take."""
