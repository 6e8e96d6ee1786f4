"""A worker's part in a run, as far as it needs no framework; `run` tells of the layers."""
