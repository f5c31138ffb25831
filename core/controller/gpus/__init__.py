"""GPUs under watch, and ending what holds their memory, with proof."""
