import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--optimizer", choices=("adam", "sgd"), default="sgd")
arguments = parser.parse_args()
for epoch in range(arguments.epochs):
    print("epoch", epoch, "with", arguments.optimizer)
