"""Settings of the service: from where they come, what they are, what their sizes say."""
