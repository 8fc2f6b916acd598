"""HTTP/1.1 and WebSocket on trio. `Listener` serves a handler; a handler gets a `Request` and answers through it."""
