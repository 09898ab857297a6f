"""The Redis store: `records` names the keys, `store.lua` changes several of them at once, and `store` calls it."""
