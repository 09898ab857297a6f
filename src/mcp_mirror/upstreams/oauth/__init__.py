"""OAuth for upstreams: tokens, where they are kept, and the servers that issue them."""
