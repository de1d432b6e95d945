"""What ``manage.py demo`` is made of: people and a past, nodes on which nothing runs, and jobs that keep coming.

A demo lab is a lab of its own in a folder of its own, ``SCHEDULEARN_HOME/demo``: nothing of a real lab is touched, and
removing the folder leaves nothing.
"""
