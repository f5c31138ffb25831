"""What launches got and measured, and what another preset would bring."""
