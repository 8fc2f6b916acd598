"""What outlives a request: responses, conversations and the count of what was used. It knows nothing of HTTP."""
