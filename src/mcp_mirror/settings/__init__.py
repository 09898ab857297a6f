"""What the user decided, as frozen objects: policies, limits, access, labels. Imports nothing else of the package."""
