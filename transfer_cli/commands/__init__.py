"""What `transfer --help` lists, a module or a folder each."""
