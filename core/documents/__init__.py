"""The JSON documents that scripts rely on, made from the picture of the host; pure.

Figures are flat (`name_unit`: number or null); beside them `figures` maps each name to its source,
age_s and, where it is null, the reason. Keys are only ever added, never renamed or removed.
"""
