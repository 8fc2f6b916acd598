"""The whole HTTP API as an OpenAPI document: `document.document`. One file for each group of paths."""
