"""stdio and HTTP towards upstreams, and the layer that lifts payloads out of messages before the SDK sees them."""
