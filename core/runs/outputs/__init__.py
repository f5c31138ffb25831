"""A run's output folder: journal, index, records, and the answers that other clients wrote."""
