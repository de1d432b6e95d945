"""Start well, then import a module that no environment has: a job that fails on purpose."""

import time


def prepare():
    for step in range(1, 6):
        print(f"step {step}: all is well")
        time.sleep(0.2)


def train():
    from a_module_that_does_not_exist import Model

    Model().fit()


prepare()
print("Now importing a module that was never installed")
train()
