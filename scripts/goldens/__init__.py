"""The parts of make_goldens.py: store (files and cases), layers, losses, ops, optim and schedules."""
