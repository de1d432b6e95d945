"""Projects bound to a branch of a Git repository: its commits become code versions."""
