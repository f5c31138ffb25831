"""What must hold before a server is started or replaced, as lines to show."""
