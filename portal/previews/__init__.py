"""Shows files that jobs and users wrote, and never runs them.

    file  ->  kinds.py: what kind it is  ->  program.py, in a process with limits: lines, rows, cells, pixels as JSON or a new
    image  ->  preview.py: what templates/previews shows; responses.py: images, recordings and framed HTML for it

The portal's pages contain nothing of a file but escaped text, what ``portal.highlight`` and ``portal.markdown`` made of it, and
images that were decoded and encoded again. Which user may see a file is decided by the app that has it, in the same way as
for its download.
"""
