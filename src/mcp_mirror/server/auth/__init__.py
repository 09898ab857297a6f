"""Authentication of HTTP requests: API tokens, JWTs, DPoP proofs. A request is verified before its body is read."""
