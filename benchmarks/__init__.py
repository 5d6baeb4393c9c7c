"""Benchmarks: performance of one machine, as ratios within one run. Run them with `make bench`."""
