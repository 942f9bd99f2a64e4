"""The parts of compare_torch.py: frames (the pipe), draw (random cases), table and its parts (operations),
judge, rules, forms, rounding, shrink; and covered, the check that each operation has a row."""
