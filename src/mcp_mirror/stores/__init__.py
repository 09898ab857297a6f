"""Storage backends for values behind one interface (`base`): memory, disk, Redis. Disk and Redis can encrypt.

A store knows namespaces, blobs and descriptors. It must not know tools, protocols or flow policies.
"""
