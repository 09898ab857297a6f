"""The dashboard: a web page for people with the calls, values, lineage and savings of a store.

An HTTP API below `/api/`, and static files without data. The package reads a store and deletes values from it. It must
not know the upstreams, nor how a request was authenticated: a function returns the viewer of each request.
"""
