"""Reads a code version without running it: a program of its own, because parsing hostile code can crash a parser.

    the canonical tar on stdin  ->  a JSON guess on stdout

``program.py`` picks the files and puts the guess together, ``source.py`` makes a file's syntax tree easy to ask,
``rules.py`` has the warnings: one function for each mistake that beginners make. Standard library only.
"""
