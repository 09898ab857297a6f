"""Who asks over HTTP: tokens are verified before a byte of a request is read."""
