"""kvctld: the controller behind a Unix socket, and its client."""
