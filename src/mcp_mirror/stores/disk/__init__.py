"""The disk store: blobs in files, their index in SQLite."""
