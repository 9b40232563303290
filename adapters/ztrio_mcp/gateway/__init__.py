"""The gateway: what stands between one MCP client and one stdio server that nobody here wrote."""
