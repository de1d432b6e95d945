"""What an operator runs from the command line, and what those commands are made of."""
