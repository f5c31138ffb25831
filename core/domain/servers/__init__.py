"""One server: what it is, how its start goes, why it ended, how it decodes."""
