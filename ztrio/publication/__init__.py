"""Outputs of a call: resolved, staged, inspected, exchanged into place, or put back. Blocking code, free of trio."""
