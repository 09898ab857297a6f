"""The Redis store: blobs in pieces, their records, shared by replicas."""
