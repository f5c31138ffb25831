"""How a server is launched: presets, SGLang's flags, the operator's rules, the command line."""
