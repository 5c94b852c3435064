"""Models on this machine: placed on devices, measured and tested."""
