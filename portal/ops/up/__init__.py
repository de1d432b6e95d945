"""What ``manage.py up`` (``make run``) is made of: look before starting, keep processes, show the way of one job."""
