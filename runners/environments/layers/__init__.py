"""Layers: folders of packages that are put over a curated environment, or make up a whole one.

``build`` makes a layer from a ``recipe`` in a ``sandbox``, and ``store`` keeps layers by their content. See
docs/architecture/layers.md.
"""
