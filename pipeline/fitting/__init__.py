"""The one decision that commands and the service share: a plan within what the user allows."""
