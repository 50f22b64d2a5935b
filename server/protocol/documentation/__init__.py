"""/docs and /openapi.json: what requests and answers look like."""
