"""The open run: its desk, its levers, its servers, the throttle law bound to it."""
