"""FileSource and FileSink in a slot."""
