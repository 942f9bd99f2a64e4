"""The parts of make_goldens.py: store (files and cases), layers, losses, npz, ops, optim and schedules."""
