"""The demo lab: made-up people, a month of history at high load, and jobs that keep coming.

A demo lab is a lab of its own in a folder of its own, ``SCHEDULEARN_HOME/demo``: nothing of a real lab is touched, and
removing the folder leaves nothing.

    people      who works there, in which groups, on which projects
    workload    what they submitted in the last month (pure)
    play        what ran where and when, decided by the project's own policies in the simulator (pure)
    rows        the month as jobs, attempts, containers, allocations, history and curves
    files       logs and outputs
    monitoring  what the GPUs did, hour by hour
    traffic     jobs that keep coming while the demo lab runs

The same seed gives the same month, relative to the start: only the day of the week and the hour at which a demo lab is
made change it, because people work by day and rest at weekends.
"""
