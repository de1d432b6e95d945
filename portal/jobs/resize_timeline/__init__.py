"""The resize timeline of a job: on how many GPUs it ran when, why that changed, and what each change cost.

``reports`` keeps what drivers report of the rank groups they form, ``timeline`` turns it into segments and changes, ``svg``
draws them, ``api`` serves them.
"""
