"""The live connection of a page, and what a page may watch over it."""
