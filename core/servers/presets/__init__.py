"""Preset files on disk: found, checked, changed key by key."""
