"""The live page: what the bridge is doing now and did recently, in a browser. docs/page.md says what it shows."""
