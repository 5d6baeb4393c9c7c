"""Benchmarks: what one machine does, as ratios within one run. Run them with `make bench`."""
