"""A simulated GPU host: SGLang-compatible server processes and simulated devices."""
