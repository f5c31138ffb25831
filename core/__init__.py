"""The headless core of kvctl: everything but the screen."""
