"""What is on disk: model folders, pairs and their compatibility, the catalog, downloads."""
