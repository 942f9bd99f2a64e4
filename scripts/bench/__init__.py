"""The parts of run_bench.py: programs and peers measure, steady repeats, goals judges, table prints."""
