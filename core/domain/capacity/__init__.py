"""The capacity law: from config.json, flags and memory to the KV pool and its ceiling."""
