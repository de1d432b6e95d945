"""Stands for a binding to a C++ library: ends like one whose exception nobody catches."""
import os


def build(path):
    words = open(path).read().split()
    if not words:
        os.write(2, b"terminate called after throwing an instance of 'std::runtime_error'\n"
                    b"  what():  tokenizer: vocabulary is empty\n")
        os.abort()
    return {word: number for number, word in enumerate(words)}
