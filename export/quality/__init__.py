"""What an export costs and loses, measured and reported."""
