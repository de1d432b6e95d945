"""The demo lab: fictional people, a month of history at high load, and new jobs while it runs.

A demo lab is a separate lab in its own folder, ``SCHEDULEARN_HOME/demo``: it changes nothing in a real lab, and removing
the folder leaves nothing behind.

    people      who works there, in which groups, on which projects
    workload    what they submitted in the last month (pure)
    simulation  what ran where and when, decided by the project's own policies in the simulator (pure)
    rows        the month as jobs, attempts, containers and allocations
    history     the lines of the jobs' histories
    files       logs and outputs
    schedules   a job that is submitted every night, with its runs
    chains      jobs that start after another one
    more_time   requests for more time
    notices     what the bell of each person shows
    git         a project that is bound to a repository
    monitoring  the readings of the GPUs, hour by hour
    traffic     jobs that are submitted while the demo lab runs

The same seed gives the same month, relative to the start: only the day of the week and the hour at which a demo lab is
made change it, because people work by day and rest at weekends.
"""
