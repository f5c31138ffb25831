"""The one place where commands are carried out and the snapshot is made."""
