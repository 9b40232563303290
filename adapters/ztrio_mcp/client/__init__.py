"""The MCP client that talks to a gateway over stdio: its requests in flight, its answers, and what it is asked.

connection      the wire to it, and each request of its from the first byte to the answer
"""

from ztrio_mcp.client.connection import MAX_IN_FLIGHT, Client, ClientRequest, ClientStatistics

__all__ = ["MAX_IN_FLIGHT", "Client", "ClientRequest", "ClientStatistics"]
