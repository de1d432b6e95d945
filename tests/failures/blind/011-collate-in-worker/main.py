import torch
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        channels = 3 if index == 21 else 1
        return torch.full((channels, 32, 32), index / 64), index % 10


def main():
    loader = DataLoader(Pictures(), batch_size=8, num_workers=2)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1024, 10))
    for step, (x, y) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
