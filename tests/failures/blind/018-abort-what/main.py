import tokenizer

print("loading vocab.txt", flush=True)
print(len(tokenizer.build("vocab.txt")), "words")
