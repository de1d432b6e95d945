import torch

# Gewichte für die Klassen
weights = torch.tensor([1.0, 2.0])
print('Summe für alle Klassen', weights.sum().item())
