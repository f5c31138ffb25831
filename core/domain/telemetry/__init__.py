"""What a running server says of itself, as typed readings, and what two readings come to."""
