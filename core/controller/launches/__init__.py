"""The ledger of launches while they serve, operating points, and plans for presets."""
