"""Storage backends for values behind one interface (`base`): `memory`, `disk` and `redis`, which `opening` creates.

They share the rules of eviction and expiry (`quotas`), the form of descriptors (`records`) and encryption. A store
knows namespaces, blobs and descriptors. It must not know tools, protocols or flow policies.
"""
