"""The commands that an operator runs, and their parts."""
