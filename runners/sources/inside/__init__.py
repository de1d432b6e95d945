"""What runs inside the sandbox: git, and what it needs. Only the standard library is used: it runs on whatever Python
a sandbox has, 3.11 or newer.
"""
