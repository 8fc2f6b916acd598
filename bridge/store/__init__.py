"""What outlives a request: responses, conversations, usage, client keys. Independent of HTTP."""
