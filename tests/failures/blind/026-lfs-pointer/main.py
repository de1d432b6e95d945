import pickle

print("loading features.pkl", flush=True)
with open("features.pkl", "rb") as file:
    features = pickle.load(file)
print(len(features))
