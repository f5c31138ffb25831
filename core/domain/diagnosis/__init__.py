"""The verdict: ranked rules over the picture of the host, each with its lever."""
