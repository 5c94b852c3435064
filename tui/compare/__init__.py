"""What `specdec compare` does: measure a pair on several devices, find where they cross, report."""
