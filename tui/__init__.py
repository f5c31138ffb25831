"""The panel: Textual over snapshots and commands, and nothing else."""
