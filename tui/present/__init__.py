"""Pure presentation: Snapshot to lines of an exact width; no Textual here."""
