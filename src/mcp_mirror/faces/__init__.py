"""Our own faces: how clients reach the gateway."""
