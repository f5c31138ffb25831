"""The flags that the SGLang of this host accepts: read from its source, or asked of it."""
