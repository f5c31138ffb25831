"""One module per source of truth: NVML, /proc, SGLang over HTTP, its log."""
