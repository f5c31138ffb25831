"""The screens and dialogs: each shows lines from `present` and turns keys into actions."""
