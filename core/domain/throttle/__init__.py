"""The concurrency law: how many requests may be in flight, from fresh readings alone."""
