"""The `ztrio` command: serve a toolbox over MCP, call its tools, read the audit, look the machine over, see it work."""
