"""One request from its row to what becomes of it, in the slots of one server."""
