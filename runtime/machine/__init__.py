"""A model pair on this machine: loaded, measured and tested."""
