"""Presets on disk, the flag catalogue, launch, readiness, stop, proof that GPUs are clean."""
