"""GPU devices, the processes that hold their memory, and the proof that one is clean."""
