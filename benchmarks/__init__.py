"""Measurements, never tests: `./run bench` runs them all, `./run bench engine` one."""
