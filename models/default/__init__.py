"""The default model: a small CNN trained on CIFAR-10, with its script, log and a photograph."""
