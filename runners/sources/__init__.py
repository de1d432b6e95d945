"""Fetches commits from Git repositories in the sandbox that also builds environments.

``fetch.py`` prepares and judges, outside; ``inside/`` runs git, in the sandbox.
"""
