"""The kvctl command line; imports nothing heavy until a verb needs it."""
