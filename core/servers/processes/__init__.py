"""Servers as processes: found, started so that they outlive kvctld, ended with proof."""
